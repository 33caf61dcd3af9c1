# SPDX-License-Identifier: MIT
"""Tests the page of `eaglecpp serve` in a headless Chromium. Tests of asking: the first view, a question, the
badge that colours drafted tokens, stop, side by side, edits and undo, continued answers, answers in another
conversation, files and pictures. Tests of rendering: hostile Markdown, endless repetitions, colours in lists
and tables. Tests of storage: names, search, export, backups, two windows, full and damaged storage. Other
tests: closed notices, a lost server, settings, presets, themes, models, the keyboard alone, a phone, axe's
findings in all views, light and dark, and no requests to other hosts. EAGLECPP_CHROMIUM names the browser.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from common import done
from playwright.sync_api import Browser, Page, expect, sync_playwright
from serving import serving

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.tiny_projector import make_image

BROWSER = os.environ.get("EAGLECPP_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
QUESTION = "What does os.path.join do?"
WATCH = """new MutationObserver(() => { window.seen ||= document.querySelectorAll("body:has(#stop) .text > *")
    .length }).observe(document, { childList: true, subtree: true })"""
NEW = "Control+Shift+O"
AXE = Path(sys.prefix, "node_modules", "axe-core", "axe.min.js").read_text(encoding="utf-8")


# Helper functions that use the page


def press(page: Page, name: str, which: int = 0) -> None:
    page.get_by_role("button", name=name, exact=True).nth(which).click()


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your question").fill(text)
    page.keyboard.press("Enter")
    wait(page)


def wait(page: Page) -> None:
    """Waits for the end of an answer."""
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)


def sent(page: Page, text: str) -> Any:
    """Returns the request that the page sends for a question."""
    with page.expect_request("**/api/chat") as request:
        ask(page, text)
    return request.value.post_data_json


def fill(page: Page, values: dict[str, Any], end: str = "Done") -> None:
    """Opens the settings, fills fields by their labels, and presses the button at the end."""
    press(page, "Settings")
    for label, value in values.items():
        page.get_by_label(label, exact=True).fill(str(value))
    press(page, end)


def pick(page: Page, name: str) -> None:
    """Picks an entry of the current conversation's menu."""
    shown = page.locator("#chats li", has=page.locator("[aria-current]"))
    shown.get_by_role("button", name="More for").click()
    shown.get_by_role("button", name=name).click()


def rename(page: Page, name: str, key: str = "Enter") -> None:
    """Types another name for the conversation that is shown, and then presses a key."""
    shown = page.locator("#chats li", has=page.locator("[aria-current]"))
    shown.get_by_role("button", name="More for").click()
    shown.get_by_label("Name", exact=True).fill(name)
    page.keyboard.press(key)
    expect(shown.get_by_label("Name", exact=True)).to_be_hidden()


def choose(page: Page, name: str, data: bytes) -> None:
    """Attaches a file."""
    kind = mimetypes.guess_type(name)[0] or ""
    page.locator("#attach-file").set_input_files({"name": name, "mimeType": kind, "buffer": data})


def height(page: Page, selector: str) -> Any:
    return page.evaluate("(selector) => document.querySelector(selector).offsetHeight", selector)


def check(page: Page, where: str) -> None:
    """Fails if axe finds more than minor problems in the current page, in either colour scheme."""
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(AXE)
        reply = page.evaluate("axe.run(document, { resultTypes: ['violations', 'passes'] })")
        assert len(reply["passes"]) > 10, "axe must have checked more than 10 rules"
        found = [(one["id"], one["nodes"]) for one in reply["violations"] if one["impact"] != "minor"]
        assert not found, f"{where}, {scheme}: {found}"


# Tests of what the page shows


def use_keyboard_only(page: Page) -> None:
    """Checks that the Tab key reaches every control in page order and with a visible focus, and that Enter
    sends a question.
    """
    page.get_by_text("Skip to the question").focus()
    reached: dict[str, bool] = {}
    while "send" not in reached and len(reached) < 40:
        page.keyboard.press("Tab")
        name, is_shown = page.evaluate(
            "() => { const e = document.activeElement, s = "
            "getComputedStyle(e.closest('.chip') ?? (e.id === 'question' ? e.form : e));"
            "return [e.id || e.ariaLabel || e.textContent, s.outlineStyle !== 'none' && "
            "parseFloat(s.outlineWidth) >= 2] }"
        )
        reached[name] = is_shown
    wanted = ["new", "search", "menu", "model", "setup-open", "log", "question", "attach", "drafting",
              "compare", "send"]  # fmt: skip
    assert [name for name in reached if name in wanted] == wanted, reached
    assert all(reached.values()), reached
    page.locator("#setup-open").press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#setup-open")).to_be_focused()


def edit_and_go_back(page: Page) -> None:
    """Checks that an edit changes nothing before the user sends it. Edits, new answers and the deletion of a
    conversation's end can be undone, and the page shows how in a visible place.
    """
    turns, question = page.locator(".turn"), page.get_by_label("Your question")
    before = turns.all_inner_texts()
    press(page, "Edit")
    expect(question).to_have_value(QUESTION)
    expect(page.get_by_text("the earlier version is kept")).to_be_visible()
    check(page, "editing")
    assert turns.all_inner_texts() == before, "editing alone must not change the turns"
    press(page, "Cancel")
    expect(question).to_have_value("")
    press(page, "Edit")
    assert [one["content"] for one in sent(page, "What is len?")["messages"]] == ["What is len?"]
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(turns.first).to_contain_text("What is len?")
    check(page, "an edited question")
    page.reload()
    press(page, "Earlier version")
    expect(turns.first).to_contain_text(QUESTION)
    expect(turns).to_have_count(len(before))
    press(page, "Regenerate", -1)
    # The three answers are the original, the answer side by side, and the new answer.
    expect(page.get_by_text("3 of 3")).to_be_visible(timeout=120_000)
    wait(page)
    press(page, "Copy")
    expect(page.locator("main .notice")).to_be_visible()


def open_on_the_loaded_model(page: Page, url: str) -> None:
    """Checks that the page starts with the loaded model, whichever model was picked last in this browser. The
    page shows the progress of a download, and the reason if the download fails.
    """
    page.evaluate("localStorage.setItem('eaglecpp.model', JSON.stringify('another:latest'))")
    others = [{"name": "another:latest", "capabilities": ["completion"]},
              {"name": "vectors:latest", "capabilities": ["embedding"]},
              {"name": "a", "file": True}]  # fmt: skip
    more = others + page.request.get(url + "/api/tags").json()["models"]
    page.route("**/api/tags", lambda route: route.fulfill(json={"models": more}))
    page.reload()
    loaded = page.request.get(url + "/api/ps").json()["models"][0]["name"]
    model, dialog = page.locator("#model"), page.get_by_role("dialog")
    expect(model).to_have_text(loaded)
    model.click()
    check(page, "models")
    expect(dialog.get_by_role("button", name="vectors:latest").first).to_be_disabled()
    expect(dialog.get_by_text("Get a drafter")).to_have_accessible_name("Get a drafter for another:latest")
    chosen = dialog.get_by_role("button", pressed=True)
    for facts in (loaded, "MB", "context 1,024 · in memory", "drafter: "):
        expect(chosen).to_contain_text(facts)
    lines = [{"status": "pulling abc", "total": 4 * 10**9, "completed": 10**9}, {"error": "no such model"}]
    page.route("**/api/pull", lambda route: route.fulfill(body="\n".join(map(json.dumps, lines))))
    page.get_by_label("Download a model").fill("another")
    with page.expect_request("**/api/pull") as request:
        press(page, "Download")
    assert request.value.post_data_json == {"model": "another", "draft": "auto"}
    expect(dialog.get_by_role("alert")).to_have_text("another: no such model")
    lines.pop()
    press(page, "Download")
    expect(dialog.get_by_role("status")).to_have_text("another is downloaded. No drafter is known for it.")
    dialog.get_by_role("button", name="another:latest").first.click()
    expect(model).to_have_text("another:latest")
    for path in ("tags", "ps"):
        page.route(f"**/api/{path}", lambda route: route.fulfill(json={"models": []}))
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("eaglecpp pull NAME")
    check(page, "without a model")
    page.unroute_all()
    page.reload()
    expect(model).to_have_text(loaded)


HOSTILE = """# Title
### Deep
**bold** `code` <img src=x onerror=alert(1)>
[bad](javascript:alert(1)) [good](https://example.com/)
![far](https://example.com/x.png)
![near](data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=)
<script>alert(1)</script><iframe src="https://example.com/"></iframe>
<style>body { display: none }</style>
Costs $5 and $6, but $e^{i\\pi}$ and \\(a_1 * b_1 * c\\) are formulas;
$\\href{javascript:alert(1)}{x}$ is none.
$$
\\begin{pmatrix} a \\\\ b \\end{pmatrix}
- 1
$$
1. one
2. two

| a | b |
| - | - |
| 1 | 2 |
```python
def f(): return "<b>"  # a note
```
"""


def show_markdown(page: Page) -> None:
    """Checks that Markdown is rendered, and that no text can run code or load a resource."""
    shown = page.evaluate(
        """async (text) => { const m = await import('/static/render.js');
            const d = document.createElement('div'); d.className = 'text'; d.append(m.render(text));
            document.getElementById('log').append(d); return d.innerHTML }""",
        HOSTILE,
    )
    text = page.locator("#log > .text")
    for selector, count in {
        "h3": 1, "h4": 1, "strong": 1, "ol li": 2, "td": 2, "math": 4, "math[display=block] mtr": 2,
        "pre .hljs-keyword": 2, "pre .hljs-comment": 1, "script, iframe, style, [style], [onerror]": 0,
        "img": 1, "img[src^='data:']": 1, "a": 2, "a[href^='javascript' i]": 0,
        "a[target=_blank][rel='noopener noreferrer']": 2,
    }.items():  # fmt: skip
        assert text.locator(selector).count() == count, (selector, shown)
    assert "Costs $5 and $6" in text.inner_text()
    check(page, "Markdown")
    page.reload()


REPEATED = [
    "\\[\n", "\\[", "\\(", "$$\n", "$$", "$ ", "$a", "\\[x\n\\]\n\n", "$x$ ", "> ", "[", "![", "](",
    "*a ", "**a*", "_a", "`", "``` ", "```\n", "- ", "1. ", "  - a\n", "|a", "a|b\n-|-\n", "<a ",
    "<!--", "&amp;", "[a]: b\n", "~~", "# a\n", "\\", "\t", "\u00a0", "http://a ", "\n\n",
]  # fmt: skip


def repeat(page: Page) -> None:
    """Checks that a model that repeats itself endlessly does not block the page, which shows the whole
    text.
    """
    slow = page.evaluate(
        """async (parts) => { const m = await import('/static/render.js'), slow = {};
            for (const part of parts) {
                const text = part.repeat(Math.ceil(60000 / part.length)), begun = performance.now();
                const d = document.createElement('div'); d.append(m.render(text));
                m.colour(d, text, [[text.length, true]]);
                slow[part] = Math.round(performance.now() - begun) }
            const d = document.createElement('div'); d.append(m.render('a b\\n'.repeat(100000)));
            return { ...slow, lost: 400000 - d.textContent.length } }""",
        REPEATED,
    )
    assert max(slow.values()) < 10_000 and not slow["lost"], slow


# Tests of stored conversations


def keep_conversations(page: Page) -> None:
    """Checks that a conversation can be named, found and exported."""
    for name, key in (("Never", "Escape"), ("Paths, joined", "Enter"), ("  ", "Enter")):
        rename(page, name, key)
    expect(page.locator("#chats [aria-current]")).to_have_text("Paths, joined")
    search = page.get_by_label("Search conversations")
    page.keyboard.press("Control+k")
    expect(search).to_be_focused()
    search.fill("nowhere to be found")
    expect(page.get_by_text("No conversations found.")).to_be_visible()
    search.fill("PATHNAME COMPONENTS")
    expect(page.locator("#chats li")).to_have_count(1)
    search.fill("")
    with page.expect_download() as got:
        pick(page, "Export as Markdown")
    reply = got.value.path().read_text(encoding="utf-8")
    assert got.value.suggested_filename == "Paths-joined.md"
    assert reply.startswith(f"# Paths, joined\n\n## You\n\n{QUESTION}\n\n## Answer\n\n"), reply


def use_two_windows(page: Page, url: str) -> None:
    """Checks that two windows keep each other's changes."""
    other = page.context.new_page()
    other.goto(url)
    press(other, "New conversation")
    ask(other, "What is len?")
    expect(page.locator("#chats li")).to_have_count(2)
    press(page, "Edit")
    for n_left, button in ((1, "Delete"), (2, "Undo"), (1, "Delete")):
        pick(other, button) if button == "Delete" else press(other, button)
        expect(page.locator("#chats li")).to_have_count(n_left)
    expect(page.locator(".turn.left").first).to_be_visible()
    press(page, "Cancel")
    other.close()


def fill_the_storage(browser: Browser, url: str) -> None:
    """Checks that the page reports conversations that it cannot store, and stores these conversations once
    the storage has room.
    """
    page = browser.new_context().new_page()
    reply = page.context.new_cdp_session(page)
    reply.send("Storage.overrideQuotaForOrigin", {"origin": url, "quotaSize": 1})
    page.goto(url)
    unsaved = page.locator("#unsaved")
    ask(page, QUESTION)
    expect(unsaved).to_contain_text("Unsaved conversations: 1, because the browser's storage is full")
    expect(page.locator("#spoken")).to_have_text("The answer is complete.")
    check(page, "a full storage")
    reply.send("Storage.overrideQuotaForOrigin", {"origin": url})
    rename(page, "")
    expect(unsaved).to_be_hidden()
    page.reload()
    expect(page.locator(".turn.user .text")).to_have_text(QUESTION)
    page.context.close()


def read_what_was_kept(page: Page) -> None:
    """Checks that the page reads the intact settings and conversations from a damaged storage."""
    page.evaluate(
        """(settings) => { for (const name of settings) localStorage.setItem("eaglecpp." + name, "[{}]") }""",
        ["current", "model", "temperature", "strategy", "drafting", "colour", "presets", "theme"],
    )
    put = """(records) => new Promise((done, fail) => { const open = indexedDB.open("eaglecpp");
        open.onsuccess = () => { const t = open.result.transaction("chats", "readwrite");
            for (const one of records) t.objectStore("chats").put(one);
            t.oncomplete = () => { open.result.close(); done() }; t.onabort = () => fail(t.error) } })"""
    good = {"role": "user", "content": "good", "before": -1, "next": 1}
    answer = {"content": "", "runs": []}
    last = {
        "answers": [answer | {"content": "x", "runs": [[10**9, True], [-1, True], ["x", True]]}],
        "before": 0,
    }
    bad: list[Any] = ["x", None, [good, last | {"answers": [{}]}], [good, last | {"answers": []}], [None],
                      [good, last | {"answers": [answer | {"runs": 1}]}],
                      [good, last | {"answers": [answer | {"runs": [None]}]}],
                      [good, last | {"answers": [answer | {"speedup": "2"}]}], [good | {"content": 1}, last],
                      [good], [good, last | {"next": 0}], [good, last | {"before": 1}]]  # fmt: skip
    whole = {"id": "whole", "at": 1e12, "title": "whole", "turns": [good, last], "next": 0}
    page.evaluate(
        put, [whole, {"id": "none"}, *(whole | {"id": str(i), "turns": b} for i, b in enumerate(bad))]
    )
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text(f"{1 + len(bad)} of the saved conversations")
    press(page, "whole")
    page.evaluate("localStorage.setItem('eaglecpp.colour', 'true')")
    page.reload()
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator(".acc")).to_have_text("x")


# Tests of questions


def attach(page: Page) -> None:
    """Checks that a text file is sent with the question. The page refuses other files with a reason; it also
    refuses pictures if the model cannot read pictures.
    """
    for name, data, reason in (
        ("tool.bin", b"\0\1\2\xff", "tool.bin: it is not UTF-8 text"),
        ("long.txt", b"x" * 300_000, "long.txt: it has 293 KiB, the maximum is 256 KiB"),
        ("paper.pdf", b"%PDF-1.7", "paper.pdf: PDF files are not supported"),
        ("dot.png", make_image(3), "does not support pictures"),
    ):
        choose(page, name, data)
        expect(page.get_by_role("alert")).to_contain_text(reason)
    choose(page, "notes.md", b"```\nlen\n```")
    expect(page.get_by_role("button", name="Remove notes.md")).to_be_visible()
    check(page, "a file is attached")
    body = sent(page, "What is len?")
    assert body["messages"][-1]["content"] == "notes.md:\n````\n```\nlen\n```\n````\n\nWhat is len?", body
    expect(page.locator(".turn.user summary")).to_have_text("notes.md")


ANSWER = {"message": {"content": "Noise:\n```python\nx\n```"}, "done": True,
          "drafts": {"pieces": [["Noise", True, False], [":\n```python\nx\n```", False, False]]},
          "timings": {"predicted_n": 40, "predicted_per_second": 10, "acceptance_length": 2, "draft_n": 30,
                      "draft_n_accepted": 20, "plan": {"strategy": "auto", "speedup": 2}}}  # fmt: skip


def close_notices(page: Page) -> None:
    """Checks that notices cover no control, and that a notice is closed by its button and by the Escape
    key.
    """
    notice = page.get_by_role("alert").filter(has_text="does not support pictures")
    for close in (lambda: press(page, "Close the notice"), lambda: page.keyboard.press("Escape")):
        choose(page, "dot.png", make_image(3))
        expect(notice).to_be_visible()
        page.locator("#model").click(timeout=5000)
        press(page, "Done")
        page.get_by_label("Your question").click(timeout=5000)
        close()
        expect(notice).to_have_count(0)


COLOURED = """# Head
One **two** [three](https://example.com/{}), `four`

- five
- *six* seven

  eight

| a | b |
| - | - |
| nine | **ten** |

```python
x = 1  # eleven

y
```
> twelve
""".replace("{}", "x" * 150)


COLOUR = """async ([text, word]) => {
    const { colour, render } = await import('/static/render.js'), d = document.createElement('div');
    const all = (selector) => [...d.querySelectorAll(selector)], at = text.indexOf(word);
    d.append(render(text));
    const n = all('td, th, li').length;
    colour(d, text, [[at, false], [word.length, true], [text.length - at - word.length, false]]);
    return [all('.acc').map((one) => one.textContent).join(''), all('tr > span, ul > span').length,
            all('td, th, li').length - n] }"""


def colour(page: Page) -> None:
    """Checks that exactly the accepted tokens are coloured, anywhere in the text, and that lists and tables
    keep their structure.
    """
    for word in (
        "Head", "One", "two", "three", "four", "five", "six", "seven", "eight", "a", "b", "nine", "ten",
        "eleven", "twelve",
    ):  # fmt: skip
        assert page.evaluate(COLOUR, [COLOURED, word]) == [word, 0, 0], word


def leave_an_answer(page: Page) -> None:
    """Checks that an answer continues in a hidden conversation while the user asks in another
    conversation.
    """
    page.keyboard.press(NEW)
    held: list[Any] = []
    page.route("**/api/chat", lambda route: held.append(route), times=1)
    page.get_by_label("Your question").fill("A slow one")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.wait_for_timeout(500)
    page.keyboard.press(NEW)
    ask(page, "What is len?")
    expect(page.locator("#chats li", has_text="A slow one").locator(".waiting")).to_be_visible()
    check(page, "an answer elsewhere")
    held[0].fulfill(json=ANSWER)
    expect(page.locator("#spoken")).to_have_text("The answer in “A slow one” is complete.")
    press(page, "A slow one")
    expect(page.locator(".turn.assistant")).to_contain_text("Noise:")
    expect(page.locator(".figures")).not_to_contain_text("stopped")


def back_up(page: Page, url: str) -> None:
    """Checks that the page saves all conversations as a file. Another browser adds the conversations of this
    file to its own conversations, and refuses other files.
    """
    with page.expect_download() as got:
        fill(page, {}, "Save as a file")
    press(page, "Done")
    saved = json.loads(got.value.path().read_text(encoding="utf-8"))
    assert got.value.suggested_filename.endswith(".json") and saved["chats"]
    other = page.context.browser.new_context().new_page()
    other.goto(url)
    bad = saved["chats"] + [
        {"id": "x"},
        saved["chats"][0] | {"turns": [{"role": "user", "content": "", "images": ["https://x.y"]}]},
    ]
    for data, said in (
        (b"no JSON", "conversations.json: "),
        (b"{}", "conversations.json: it is not a backup of this page"),
        (
            json.dumps(saved | {"chats": bad}).encode(),
            "Conversations added: {n} of {m}. 2 cannot be read and were left out.",
        ),
        (json.dumps(saved).encode(), "Conversations added: 0 of {n}."),
    ):
        press(other, "Settings")
        other.locator("#backup").set_input_files(
            {"name": "conversations.json", "mimeType": "application/json", "buffer": data}
        )
        expect(other.locator("main .notice")).to_contain_text(said.format(n=len(saved["chats"]), m=len(bad)))
    other.reload()
    expect(other.locator("#chats li")).to_have_count(len(saved["chats"]))
    other.context.close()


def lose_the_server(page: Page) -> None:
    """Checks that the page shows an error when the server is lost, and that "Try again" works."""
    page.route("**/api/**", lambda route: route.abort())
    page.reload()
    alert = page.locator("main .notice")
    expect(alert).to_contain_text("does not answer; is eaglecpp serve still running?")
    page.unroute_all()
    press(page, "Try again")
    expect(alert).to_have_text("")
    page.keyboard.press(NEW)
    page.route("**/api/chat", lambda route: route.abort(), times=1)
    ask(page, "What is len?")
    expect(page.locator(".answer .bad")).to_contain_text("does not answer; is eaglecpp serve still running?")
    check(page, "a lost server")
    press(page, "Try again")
    expect(page.locator(".answer .bad")).to_have_count(0)
    wait(page)
    press(page, "Close the notice")


def type_on_a_phone(browser: Browser, url: str) -> None:
    """Checks that Enter inserts a new line on a phone, whose keyboard has no Shift+Enter. Also checks the
    accessible names of the switches.
    """
    page = browser.new_context(
        has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844}
    ).new_page()
    page.goto(url)
    question = page.get_by_label("Your question")
    expect(page.locator(".chip span").last).to_be_visible()
    question.press_sequentially("one")
    question.press("Enter")
    expect(question).to_have_value("one\n")
    question.fill("What is len?")
    press(page, "Send")
    wait(page)
    expect(page.locator(".turn.user")).to_have_count(1)
    page.context.close()


def see(page: Page, url: str) -> None:
    """Checks that a picture is sent as a JPEG to a model that reads pictures, that code blocks show their
    language, and that a badge with the speed-up shows and hides the colours of drafted tokens.
    """
    models = page.request.get(url + "/api/tags").json()["models"]
    models[0]["capabilities"].append("vision")
    page.route("**/api/tags", lambda route: route.fulfill(json={"models": models}))
    page.route("**/api/chat", lambda route: route.fulfill(json=ANSWER))
    page.reload()
    fill(page, {"Strategy": ""})
    expect(page.locator("#model")).to_have_text(models[0]["name"])
    choose(page, "noise.png", make_image(3))
    expect(page.get_by_role("img", name="Picture 1")).to_be_visible()
    message = sent(page, "What is this?")["messages"][-1]
    assert base64.b64decode(message["images"][0])[:2] == b"\xff\xd8"
    answer = page.locator(".turn.assistant").last
    expect(answer.locator(".code .bar")).to_have_text("python")
    expect(answer.locator(".acc")).to_have_text("Noise")
    answer.get_by_role("button", name="2.0× faster", pressed=True).click()
    expect(answer.locator(".acc")).to_have_count(0)
    check(page, "a picture")
    page.unroute_all()


def change_settings(page: Page) -> None:
    """Checks that every setting is sent with the request, and that the page shows the server's defaults."""
    press(page, "Settings")
    expect(page.locator("#in-force")).to_contain_text("a context of 1024 tokens")
    expect(page.get_by_label("Context", exact=True)).to_have_attribute("placeholder", "1024")
    check(page, "settings")
    press(page, "Done")
    wanted = {"Temperature": 0, "Max tokens": 9, "Context": 512, "Top p": 0.9, "Top k": 20, "Min p": 0.05,
              "Repeat penalty": 1.1, "Seed": 7}  # fmt: skip
    fill(page, {**wanted, "Strategy": "chain:2"})
    page.reload()
    body = sent(page, QUESTION)
    assert list(body["options"].values()) == list(wanted.values()), body
    assert body["options"]["num_predict"] == 9 and body["strategy"] == "chain:2", body
    expect(page.locator(".figures").last).to_contain_text("cut off at the token limit")
    go_on(page)
    page.get_by_role("switch", name="Side by side").check(force=True)
    ask(page, QUESTION)
    expect(page.locator(".pair .figures").first).to_contain_text("9 tokens are too few to compare speeds")
    page.get_by_role("switch", name="Side by side").uncheck(force=True)
    fill(page, {**dict.fromkeys(wanted, ""), "Strategy": "chain:3"})


def go_on(page: Page) -> None:
    """Checks that a cut answer can be continued. An edited answer is marked as edited, and the page keeps the
    original answer.
    """
    text = page.locator(".turn.assistant .text")
    cut = text.inner_text()
    with page.expect_request("**/api/chat") as request:
        press(page, "Continue")
    said = request.value.post_data_json["messages"][-1]
    assert said["role"] == "assistant" and said["content"].split() == cut.split(), said
    wait(page)
    expect(text).to_contain_text(cut)
    assert len(text.inner_text()) > len(cut), "the continued answer must be longer"
    expect(page.locator("#gauge")).to_have_attribute("aria-valuetext", re.compile(r"^\d+ of 1,024 tokens$"))
    press(page, "Edit the answer")
    ask(page, "Joins")
    expect(text).to_have_text("Joins")
    expect(page.get_by_text("2 of 2")).to_be_visible()


def use_presets(page: Page) -> None:
    """Checks presets, which consist of a system prompt and values. Each conversation has its own system
    prompt.
    """
    page.keyboard.press(NEW)
    values = {"System prompt": "Be brief.", "Temperature": 0.3, "Name of a new preset": "Brief"}
    fill(page, values, "Save preset")
    press(page, "Done")
    body = sent(page, "What is len?")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}, body
    assert body["options"]["temperature"] == 0.3, body
    page.keyboard.press(NEW)
    assert sent(page, "What is len?")["messages"][0]["role"] == "user", "expected no system prompt"
    press(page, "Settings")
    preset = page.get_by_label("Preset", exact=True)
    for name, temperature, system in (("Precise", "0", ""), ("Brief", "0.3", "Be brief.")):
        preset.select_option(name)
        expect(page.get_by_label("Temperature")).to_have_value(temperature)
        expect(page.get_by_label("System prompt")).to_have_value(system)
    press(page, "Delete this preset")
    expect(preset).to_have_value("")
    preset.select_option("Precise")
    press(page, "Done")


def use_themes(page: Page) -> None:
    """Checks that the chosen light or dark theme overrides the system's theme and is kept for the next
    visit.
    """
    page.emulate_media(color_scheme="light")
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    for theme, is_light in (("dark", False), ("", True)):
        press(page, "Settings")
        page.get_by_label("Theme").select_option(theme)
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        assert (page.evaluate(back) == light) == is_light


def use_a_phone(page: Page) -> None:
    """Checks that on a phone the list of conversations is a drawer, the header is one row, and the input
    field grows with the question.
    """
    page.set_viewport_size({"width": 360, "height": 700})
    page.reload()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "the page must fit the phone"
    press(page, "Conversations")
    check(page, "conversations on a phone")
    page.get_by_role("button", name="More for").first.click()
    page.keyboard.press("Escape")
    expect(page.locator("#side")).to_be_visible()
    press(page, "Close the list")
    expect(page.locator("#side")).to_be_hidden()
    assert height(page, "header") < 64, "one row"
    press(page, "Conversations")
    press(page, "New conversation")
    expect(page.locator("#side")).to_be_hidden()
    low = height(page, "#question")
    page.get_by_label("Your question").fill("one\ntwo\nthree\nfour")
    assert height(page, "#question") > 2 * low, "it grows"
    ask(page, QUESTION)
    check(page, "an answer on a phone")


def compare(page: Page, text: str) -> None:
    """Checks that the page compares an answer with drafting and an answer without. Both answers have the same
    text, and the page shows the speed-up.
    """
    page.get_by_role("switch", name="Side by side").check(force=True)
    press(page, "Regenerate")
    expect(page.get_by_text("the speed without drafting (measured)")).to_be_visible(timeout=120_000)
    figures = page.locator(".pair .figures").all_inner_texts()
    assert figures[0].count("×") == 1 and "plain" not in figures[0], figures
    speeds = [float(line.split(" tokens/s")[0].split()[-1]) for line in figures]
    gain = float(figures[0].split("×")[0].split()[-1])
    assert abs(gain - speeds[0] / speeds[1]) < 0.02, (figures, speeds)
    assert page.locator(".pair .answer .text").all_inner_texts() == [text, text]
    check(page, "side by side")
    page.get_by_role("switch", name="Side by side").uncheck(force=True)


with serving() as url, sync_playwright() as tools:
    browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
    page = browser.new_context(viewport={"width": 1100, "height": 800}).new_page()
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: faults.append(f"a dialog of the browser: {dialog.message}"))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.goto(url)
    expect(page.get_by_role("heading", name="Ask ")).to_be_visible()
    check(page, "nothing asked yet")
    fill(page, {"Temperature": 0, "Strategy": "chain:3"})
    page.evaluate(WATCH)
    ask(page, QUESTION)
    assert page.evaluate("window.seen"), "the page must show an answer while it is generated"
    answer = page.locator(".turn.assistant .text").first
    expect(answer).to_contain_text("Join two or more pathname components")
    assert answer.locator(".acc").count() == 0, "drafted tokens are not coloured by default"
    press(page, "Settings")
    page.get_by_label("Show drafted text").check()
    press(page, "Done")
    n_coloured = answer.locator(".acc").count()
    assert n_coloured > 0, "drafted tokens must be in colour"
    assert page.get_by_text("tokens/s").count() == 1, "the speed must be shown exactly once"
    check(page, "an answer")
    use_keyboard_only(page)
    compare(page, answer.inner_text())
    page.reload()
    edit_and_go_back(page)
    keep_conversations(page)
    use_two_windows(page, url)
    fill_the_storage(browser, url)
    open_on_the_loaded_model(page, url)
    page.keyboard.press(NEW)
    show_markdown(page)
    attach(page)
    close_notices(page)
    colour(page)
    leave_an_answer(page)
    lose_the_server(page)
    back_up(page, url)
    type_on_a_phone(browser, url)
    see(page, url)
    page.keyboard.press(NEW)
    change_settings(page)
    use_presets(page)
    use_themes(page)
    page.route("**/api/ps", lambda route: route.fulfill(json={"models": []}), times=1)
    page.reload()
    page.keyboard.press(NEW)
    page.route("**/api/chat", lambda route: None, times=1)
    press(page, "Explain speculative decoding to a cook.")
    expect(page.locator(".figures")).to_have_text("Loading the model.")
    page.keyboard.press("Escape")
    expect(page.locator(".figures")).to_have_text("stopped")
    use_a_phone(page)
    page.set_viewport_size({"width": 1100, "height": 800})
    read_what_was_kept(page)
    repeat(page)
    # Requests that this script aborted above are not faults.
    faults = [one for one in faults if "ERR_FAILED" not in one]
    assert not faults, faults
    foreign = [one for one in asked if not one.startswith((url, "data:", "blob:"))]
    assert not foreign, foreign
    browser.close()
done(f"{n_coloured} coloured pieces, and all that this file names at its head")
