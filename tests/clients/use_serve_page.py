# SPDX-License-Identifier: MIT
"""The page of `eaglecpp serve` in a headless Chromium: what it begins with, a question, the badge that shows
drafted tokens in colour, stop, side by side, edits and what they replace, an answer that goes on, hostile
Markdown, repetitions without end, names, search, export, two windows, a full and a damaged
storage, files and pictures, settings, presets, themes, models, the keyboard alone, a phone, what axe finds in
all of them, light and dark, and that nothing is asked of another host. EAGLECPP_CHROMIUM names the browser.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
import shutil
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from common import done
from playwright.sync_api import Browser, Page, expect, sync_playwright
from serving import serving

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.tiny_projector import N_ROWS, make_image, make_projector

WIDTH = 320  # of the demo's rows
BROWSER = os.environ.get("EAGLECPP_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
QUESTION = "What does os.path.join do?"
AXE = Path(sys.prefix, "node_modules", "axe-core", "axe.min.js").read_text(encoding="utf-8")


def check(page: Page, where: str) -> None:
    """What axe finds wrong in the page as it is, in both colour schemes; minor advice aside."""
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(AXE)
        told = page.evaluate("axe.run(document, { resultTypes: ['violations', 'passes'] })")
        assert len(told["passes"]) > 10, "axe looked at nothing"
        found = [
            (one["id"], one["impact"], [node["target"] for node in one["nodes"]])
            for one in told["violations"]
            if one["impact"] in ("moderate", "serious", "critical")
        ]
        assert not found, f"{where}, {scheme}: {found}"


def use_keyboard_only(page: Page) -> None:
    """Every control is reached in the order of the page and shows that it has the focus; a question is
    asked.
    """
    page.locator(".skip").focus()
    reached: list[tuple[str, bool]] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        told = page.evaluate(
            "() => { const e = document.activeElement, s = "
            "getComputedStyle(e.closest('.chip, .field') ?? (e.id === 'question' ? e.form : e));"
            "return [e.id || e.ariaLabel || e.textContent, s.outlineStyle !== 'none' && "
            "parseFloat(s.outlineWidth) >= 2] }"
        )
        reached.append((told[0], told[1]))
        if told[0] == "send":
            break
    names = [name for name, _ in reached]
    wanted = ["new", "search", "models-open", "menu", "model", "setup-open", "log", "question",
              "attach", "drafting", "compare", "send"]  # fmt: skip
    assert [name for name in names if name in wanted] == wanted, names
    assert all(is_shown for _, is_shown in reached), reached
    page.locator("#setup-open").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "setup-open", "the focus comes back"


def edit_and_go_back(page: Page) -> None:
    """An edit changes nothing before it is sent, and can be taken back afterwards; so can a new answer and
    the end of a conversation. What the page says about it can be seen.
    """
    turns, question = page.locator(".turn"), page.get_by_label("Your question")
    before = turns.all_inner_texts()
    page.get_by_role("button", name="Edit", exact=True).first.click()
    expect(question).to_have_value(QUESTION)
    expect(page.get_by_text("the answers it had are kept")).to_be_visible()
    check(page, "editing")
    assert turns.all_inner_texts() == before, "nothing was sent yet"
    page.reload()
    assert turns.all_inner_texts() == before
    page.get_by_role("button", name="Edit", exact=True).first.click()
    page.get_by_role("button", name="Cancel").click()
    expect(question).to_have_value("")
    page.get_by_role("button", name="Edit", exact=True).first.click()
    ask(page, "What is len?")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(turns.first).to_contain_text("What is len?")
    check(page, "an edited question")
    page.reload()
    page.get_by_role("button", name="Earlier version").click()
    expect(turns.first).to_contain_text(QUESTION)
    expect(turns).to_have_count(len(before))
    expect(page.locator(".turn.assistant .text").first).to_contain_text("Join two or more")
    page.get_by_role("button", name="Regenerate").last.click()
    expect(page.get_by_text("3 of 3")).to_be_visible(timeout=120_000)  # the first, side by side, and this
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)
    page.get_by_role("button", name="Copy", exact=True).first.click()
    status = page.locator("#status")
    expect(status).not_to_be_empty()
    box = status.bounding_box()
    assert box is not None and box["width"] > 50 and box["height"] > 10, "it can be seen"


def open_on_the_loaded_model(page: Page, url: str) -> None:
    """Whatever model was picked last in this browser."""
    page.evaluate("localStorage.setItem('eaglecpp.model', JSON.stringify('another:latest'))")
    others = [{"name": "another:latest", "capabilities": ["completion"]},
              {"name": "vectors:latest", "capabilities": ["embedding"]}]  # fmt: skip
    more = others + requests_json(url, "/api/tags")["models"]
    page.route("**/api/tags", lambda route: route.fulfill(json={"models": more}))
    page.reload()
    loaded = requests_json(url, "/api/ps")["models"][0]["name"]
    model = page.locator("#model")
    expect(model.locator("span")).to_have_text(loaded)
    assert model.inner_text() == loaded, "it can be seen"
    model.click()
    names = page.get_by_role("menuitemradio")
    expect(names.filter(has_text="another:latest")).to_contain_text("no drafter")
    expect(names.filter(has_text="vectors:latest")).to_have_count(0)
    expect(page.get_by_role("menuitemradio", checked=True)).to_contain_text("MB")
    expect(page.get_by_role("menuitemradio", checked=True)).to_contain_text("context 1,024 · in memory")
    expect(page.get_by_role("menuitemradio", checked=True)).to_contain_text("drafter: ")
    check(page, "the choice of a model")
    page.keyboard.press("Escape")
    expect(names).to_have_count(0)
    expect(model).to_be_focused()
    page.unroute("**/api/tags")
    page.route("**/api/tags", lambda route: route.fulfill(json={"models": []}))
    page.route("**/api/ps", lambda route: route.fulfill(json={"models": []}))
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("eaglecpp pull NAME")
    check(page, "without a model")
    page.unroute("**/api/tags")
    page.unroute("**/api/ps")
    page.reload()


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
    """What is meant looks like it, and nothing that a text says runs or loads anything."""
    expect(page.get_by_role("heading", name="Ask ")).to_be_visible()  # what is drawn last
    shown = page.evaluate(
        "async (text) => { const m = await import('/static/render.js');"
        "const d = document.createElement('div'); d.className = 'text';"
        "d.append(m.render(text));"
        "document.getElementById('log').append(d);"
        "await new Promise((done) => setTimeout(done, 300)); return d.innerHTML }",
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


def keep_conversations(page: Page) -> None:
    """A conversation has a name, is found, and is exported."""
    pick(page, "Rename")
    page.get_by_label("Name of the conversation").fill("Paths, joined")
    page.keyboard.press("Enter")
    expect(page.locator("#chats [aria-current]")).to_have_text("Paths, joined")
    page.get_by_label("Search conversations").fill("nowhere to be found")
    expect(page.get_by_text("None found.")).to_be_visible()
    page.get_by_label("Search conversations").fill("PATHNAME COMPONENTS")
    expect(page.locator("#chats li")).to_have_count(1)
    page.get_by_label("Search conversations").fill("")
    with page.expect_download() as got:
        pick(page, "Export as Markdown")
    told = got.value.path().read_text(encoding="utf-8")
    assert got.value.suggested_filename == "Paths-joined.md"
    assert told.startswith(f"# Paths, joined\n\n## You\n\n{QUESTION}\n\n## Answer\n\n"), told


def fill_the_storage(browser: Browser, url: str) -> None:
    """What cannot be kept is said for as long as that is so, and is kept once there is room."""
    page = browser.new_context().new_page()
    told = page.context.new_cdp_session(page)
    told.send("Storage.overrideQuotaForOrigin", {"origin": url, "quotaSize": 1})
    page.goto(url)
    unsaved = page.locator("#unsaved")
    expect(unsaved).to_be_hidden()
    page.keyboard.press("Control+k")
    ask(page, QUESTION)
    expect(unsaved).to_contain_text("Not saved is one conversation: the browser's storage is full")
    expect(page.locator("#spoken")).to_have_text("The answer is complete.")
    expect(page.locator("#status")).not_to_contain_text("answer")
    check(page, "a full storage")
    told.send("Storage.overrideQuotaForOrigin", {"origin": url})
    pick(page, "Rename")
    page.keyboard.press("Enter")
    expect(unsaved).to_be_hidden()
    page.reload()
    expect(page.locator(".turn.user .text")).to_have_text(QUESTION)
    page.context.close()


def read_what_was_kept(page: Page) -> None:
    """Settings and conversations of a storage that somebody damaged, as far as they are good."""
    page.evaluate(
        """(settings) => { for (const name of settings) localStorage.setItem("eaglecpp." + name, "[{}]") }""",
        ["current", "model", "temperature", "system", "strategy", "drafting", "colour", "presets", "theme"],
    )
    put = """(records) => new Promise((done, fail) => { const open = indexedDB.open("eaglecpp");
        open.onsuccess = () => { const t = open.result.transaction("chats", "readwrite");
            for (const one of records) t.objectStore("chats").put(one);
            t.oncomplete = () => { open.result.close(); done() }; t.onabort = () => fail(t.error) } })"""
    good = {"role": "user", "content": "good"}
    answer = {"content": "", "runs": []}
    turns: list[Any] = [good, {"answers": [answer]}]
    bad: list[Any] = ["x", None, [good, {"answers": [{}]}], [{"answers": []}], [{"role": "user"}], [None],
                      [{"answers": [answer | {"runs": 1}]}], [good | {"others": [[]]}]]  # fmt: skip
    whole = {"id": "whole", "at": 1e12, "title": "whole", "turns": turns}
    page.evaluate(
        put, [whole, {"id": "none"}, *(whole | {"id": str(i), "turns": b} for i, b in enumerate(bad))]
    )
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text(f"{1 + len(bad)} of the conversations that this")
    page.get_by_role("button", name="whole", exact=True).click()
    expect(page.locator(".turn")).to_have_count(2)
    page.evaluate("""() => new Promise((done) => { localStorage.clear();
        indexedDB.deleteDatabase("eaglecpp").onsuccess = done; setTimeout(done, 1000) })""")


REPEATED = [
    "\\[\n", "\\[", "\\(", "$$\n", "$$", "$ ", "$a", "\\[x\n\\]\n\n", "$x$ ", "> ", "[", "![", "](",
    "*a ", "**a*", "_a", "`", "``` ", "```\n", "- ", "1. ", "  - a\n", "|a", "a|b\n-|-\n", "<a ",
    "<!--", "&amp;", "[a]: b\n", "~~", "# a\n", "\\", "\t", "\u00a0", "http://a ", "\n\n",
]  # fmt: skip


def repeat(page: Page) -> None:
    """A model that says the same for ever does not hold the page up."""
    page.reload()
    expect(page.get_by_role("heading", name="Ask ")).to_be_visible()
    slow = page.evaluate(
        """async (parts) => { const m = await import('/static/render.js'), slow = {};
            for (const part of parts) {
                const text = part.repeat(Math.ceil(60000 / part.length)), begun = performance.now();
                const d = document.createElement('div'); d.append(m.render(text));
                m.colour(d, text, [[text.length, true]]);
                slow[part] = Math.round(performance.now() - begun) }
            return slow }""",
        REPEATED,
    )
    assert max(slow.values()) < 10_000, slow
    whole = page.evaluate(
        "async () => { const m = await import('/static/render.js'), d = document.createElement('div');"
        "d.append(m.render('a b\\n'.repeat(100000))); return d.textContent.length }"
    )
    assert whole == 400_000, "nothing is left out"


def use_two_windows(page: Page, url: str) -> None:
    """Neither window loses what the other one has saved."""
    other = page.context.new_page()
    other.goto(url)
    other.keyboard.press("Control+k")
    ask(other, "What is len?")
    expect(page.locator("#chats li")).to_have_count(2)
    expect(page.locator("#chats li").first).to_contain_text("What is len?")
    page.get_by_role("button", name="Edit", exact=True).first.click()
    other.once("dialog", lambda dialog: dialog.accept())
    pick(other, "Delete")
    expect(page.locator("#chats li")).to_have_count(1)
    expect(page.get_by_text("the answers it had are kept")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    other.close()


def sent(page: Page, text: str) -> Any:
    """The request that the page makes of a question."""
    with page.expect_request("**/api/chat") as made:
        ask(page, text)
    return made.value.post_data_json


PIXELS = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def attach(page: Page) -> None:
    """Text goes with the question; other things are refused with the reason, pictures where the model reads
    none.
    """
    choose(page, "#attach-file", "tool.bin", b"\0\1\2\xff")
    expect(page.get_by_role("alert")).to_contain_text("tool.bin: it is not text in UTF-8")
    choose(page, "#attach-file", "long.txt", b"x" * 300_000)
    expect(page.get_by_role("alert")).to_contain_text("long.txt: it has 293 KiB, at most 256 are read")
    choose(page, "#attach-file", "dot.png", base64.b64decode(PIXELS))
    expect(page.get_by_role("alert")).to_contain_text("does not read pictures")
    choose(page, "#attach-file", "notes.md", b"```\nlen\n```")
    expect(page.get_by_role("button", name="Remove notes.md")).to_be_visible()
    check(page, "a file is attached")
    body = sent(page, "What is len?")
    assert body["messages"][-1]["content"] == "notes.md:\n````\n```\nlen\n```\n````\n\nWhat is len?", body
    expect(page.locator("#held li")).to_have_count(0)
    expect(page.locator(".turn.user summary")).to_have_text("notes.md")


def see(page: Page) -> None:
    """A model that reads pictures says on the page what it says through the API about the same picture."""
    with tempfile.TemporaryDirectory() as folder:
        projector = make_projector(Path(folder, "mmproj.gguf"), WIDTH, "janus_pro")
        with serving("--mmproj", str(projector)) as url:
            page.goto(url)
            expect(page.locator("#model span")).to_contain_text("latest")
            page.get_by_role("button", name="Settings").click()
            page.get_by_label("Temperature").fill("0")
            page.get_by_role("button", name="Done").click()
            choose(page, "#attach-file", "noise.png", make_image(3))
            expect(page.get_by_role("img", name="Picture 1")).to_be_visible()
            body = sent(page, "What is this?")
            message = body["messages"][-1]
            assert message["content"] == "What is this?"
            assert base64.b64decode(message["images"][0])[:2] == b"\xff\xd8"
            request = urllib.request.Request(f"{url}/api/chat", json.dumps(body | {"stream": False}).encode())
            with urllib.request.urlopen(request, timeout=600) as response:
                told = json.load(response)
            assert told["prompt_eval_count"] + told["timings"]["reused_n"] > N_ROWS["janus_pro"]
            expect(page.locator(".turn.assistant .text")).to_contain_text(told["message"]["content"].strip())
            check(page, "a picture")


def change_settings(page: Page) -> None:
    """Each is in the request, and the page says what the server was started with."""
    wanted = {"Top p": 0.9, "Top k": 20, "Min p": 0.05, "Repeat penalty": 1.1, "Seed": 7, "Max tokens": 9,
              "Context": 512}  # fmt: skip
    page.get_by_role("button", name="Settings").click()
    expect(page.locator("#in-force")).to_contain_text("a context of 1024 tokens")
    expect(page.get_by_label("Context", exact=True)).to_have_attribute("placeholder", "1024")
    expect(page.get_by_label("Top k")).to_have_attribute("placeholder", re.compile(r"\d+"))
    for label, value in wanted.items():
        page.get_by_label(label, exact=True).fill(str(value))
    page.get_by_label("Strategy").fill("chain:2")
    check(page, "settings")
    page.get_by_role("button", name="Done").click()
    page.reload()
    body = sent(page, QUESTION)
    assert body["options"] == {
        "temperature": 0, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repeat_penalty": 1.1, "seed": 7,
        "num_predict": 9, "num_ctx": 512,
    }, body  # fmt: skip
    assert body["strategy"] == "chain:2"
    expect(page.locator(".figures").last).to_contain_text("cut at the limit")
    go_on(page)
    page.get_by_role("switch", name="Side by side").check(force=True)
    ask(page, QUESTION)
    expect(page.locator(".pair .figures").first).to_contain_text("9 tokens are too few to compare speeds")
    page.get_by_role("switch", name="Side by side").uncheck(force=True)
    page.get_by_role("button", name="Settings").click()
    for label in wanted:
        page.get_by_label(label, exact=True).fill("")
    page.get_by_label("Strategy").fill("chain:3")
    page.get_by_role("button", name="Done").click()


def go_on(page: Page) -> None:
    """An answer that was cut goes on; one that was edited goes on from what it says now, and what it was
    stays.
    """
    text = page.locator(".turn.assistant .text")
    cut = text.inner_text()
    with page.expect_request("**/api/chat") as made:
        page.get_by_role("button", name="Continue").click()
    said = made.value.post_data_json["messages"][-1]
    assert said["role"] == "assistant" and said["content"].split() == cut.split(), said
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)
    expect(text).to_contain_text(cut)
    assert len(text.inner_text()) > len(cut), "it has gone on"
    expect(page.locator("#gauge")).to_have_attribute("aria-valuetext", re.compile(r"^\d+ of 1,024 tokens$"))
    page.get_by_role("button", name="Edit the answer").click()
    page.get_by_role("textbox", name="The answer").fill("Joins")
    check(page, "an answer is edited")
    page.get_by_role("button", name="Keep").click()
    expect(text).to_have_text("Joins")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.get_by_role("button", name="Earlier version").click()
    expect(text).to_contain_text(cut)


def use_presets(page: Page) -> None:
    """A preset has the system prompt and the values; each conversation has a system prompt of its own."""
    page.keyboard.press("Control+k")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.3")
    expect(page.get_by_label("Preset", exact=True)).to_have_value("")
    page.once("dialog", lambda dialog: dialog.accept("Brief"))
    page.get_by_role("button", name="Save as").click()
    page.get_by_role("button", name="Done").click()
    body = sent(page, "What is len?")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}, body
    assert body["options"]["temperature"] == 0.3, body
    page.keyboard.press("Control+k")
    assert sent(page, "What is len?")["messages"][0]["role"] == "user", "it is the other conversation's"
    page.get_by_role("button", name="Settings").click()
    preset = page.get_by_label("Preset", exact=True)
    preset.select_option("Precise")
    expect(page.get_by_label("Temperature")).to_have_value("0")
    expect(page.get_by_label("System prompt")).to_have_value("")
    preset.select_option("Brief")
    expect(page.get_by_label("Temperature")).to_have_value("0.3")
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")
    page.get_by_role("button", name="Delete this preset").click()
    expect(preset).to_have_value("")
    preset.select_option("Precise")
    page.get_by_role("button", name="Done").click()


def use_themes(page: Page) -> None:
    """Light and dark whatever the system says, in the next visit, too."""
    page.emulate_media(color_scheme="light")
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    for theme, is_light in (("dark", False), ("", True)):
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Theme").select_option(theme)
        page.get_by_role("button", name="Done").click()
        assert (page.evaluate(back) == light) == is_light
        page.reload()
        assert (page.evaluate(back) == light) == is_light


def change_models(page: Page) -> None:
    """A download shows how far it is, and why it failed."""
    page.get_by_role("button", name="Models").click()
    expect(page.locator("#stored li").first).to_contain_text("drafter: ")
    check(page, "models")
    lines = [{"status": "pulling abc", "total": 4 * 10**9, "completed": 10**9}, {"status": "success"}]
    page.route("**/api/pull", lambda route: route.fulfill(body="\n".join(map(json.dumps, lines))))
    page.get_by_label("Download a model").fill("another")
    with page.expect_request("**/api/pull") as made:
        page.get_by_role("button", name="Download").click()
    assert made.value.post_data_json == {"model": "another", "draft": "auto"}
    expect(page.locator("#pull-said")).to_have_text("another is here.")
    lines[1] = {"error": "no such model"}
    page.get_by_role("button", name="Download").click()
    expect(page.locator("#pull-said")).to_have_text("another: no such model")
    assert page.locator("#pull-bar").get_attribute("value") == "0.25"
    page.unroute("**/api/pull")
    page.get_by_role("button", name="Done").click()


def choose(page: Page, picker: str, name: str, data: bytes) -> None:
    """A file."""
    kind = mimetypes.guess_type(name)[0] or ""
    page.locator(picker).set_input_files({"name": name, "mimeType": kind, "buffer": data})


def requests_json(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return json.loads(answer.read())


def pick(page: Page, name: str) -> None:
    """Something of the menu of the conversation that is shown."""
    page.locator("#chats li", has=page.locator("[aria-current]")).get_by_role(
        "button", name="More for"
    ).click()
    page.get_by_role("menuitem", name=name).click()


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your question").fill(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)


with serving() as url, sync_playwright() as tools:
    browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
    page = browser.new_context(viewport={"width": 1100, "height": 800}).new_page()
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.goto(url)
    expect(page.get_by_role("heading", name="Ask ")).to_be_visible()
    expect(page.locator(".empty button")).to_have_count(3)
    check(page, "nothing asked yet")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Strategy").fill("chain:3")
    page.get_by_label("System prompt").fill("")
    page.get_by_role("button", name="Done").click()
    ask(page, QUESTION)
    answer = page.locator(".turn.assistant .text").first
    expect(answer).to_contain_text("Join two or more pathname components")
    assert answer.locator(".acc").count() == 0, "nobody has asked what was drafted"
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Show what was drafted").check()
    page.get_by_role("button", name="Done").click()
    n_coloured = answer.locator(".acc").count()
    assert n_coloured > 0, "drafted tokens are in colour"
    text = answer.inner_text()
    assert page.get_by_text("tokens/s").count() == 1, "one figure says how fast it was"
    check(page, "an answer")
    use_keyboard_only(page)
    page.get_by_role("switch", name="Side by side").check(force=True)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".pair .answer")).to_have_count(2)
    expect(page.get_by_text("the speed without drafting, measured")).to_be_visible(timeout=120_000)
    figures = page.locator(".pair .figures").first.inner_text()
    assert figures.count("×") == 1 and "plain" not in figures, figures
    speeds = [
        float(line.split(" tokens/s")[0].split()[-1])
        for line in page.locator(".pair .figures").all_inner_texts()
    ]
    gain = float(figures.split("×")[0].split()[-1])
    assert abs(gain - speeds[0] / speeds[1]) < 0.02, (figures, speeds)
    both = page.locator(".pair .answer .text").all_inner_texts()
    assert both[0] == both[1] == text, both
    assert page.locator(".pair .answer").nth(1).locator(".acc").count() == 0
    check(page, "side by side")
    page.get_by_role("switch", name="Side by side").uncheck(force=True)
    page.reload()
    expect(page.locator(".turn.assistant .text").first).to_contain_text("Join two or more")
    edit_and_go_back(page)
    keep_conversations(page)
    use_two_windows(page, url)
    fill_the_storage(browser, url)
    open_on_the_loaded_model(page, url)
    page.keyboard.press("Control+k")
    expect(page.locator(".turn")).to_have_count(0)
    show_markdown(page)
    ask(page, QUESTION)
    attach(page)
    page.keyboard.press("Control+k")
    change_settings(page)
    use_presets(page)
    use_themes(page)
    change_models(page)
    page.keyboard.press("Control+k")
    page.locator(".empty button").first.click()
    expect(page.locator(".turn.user .text")).to_contain_text("Explain speculative decoding")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)
    page.get_by_label("Your question").fill("What is len?")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)
    page.set_viewport_size({"width": 360, "height": 700})
    page.reload()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, f"the page is {width} wide on a phone"
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("button", name="New conversation").first).to_be_visible()
    check(page, "conversations on a phone")
    page.get_by_role("button", name="Close the list").click()
    expect(page.locator("#side")).to_be_hidden()
    header = page.locator("header").bounding_box()
    assert header is not None and header["height"] < 64, "one row"
    page.get_by_role("button", name="Conversations").click()
    page.get_by_role("button", name="New conversation").first.click()
    expect(page.locator("#side")).to_be_hidden()
    question = page.get_by_label("Your question")
    low = question.bounding_box()
    question.fill("one\ntwo\nthree\nfour")
    high = question.bounding_box()
    assert low is not None and high is not None and high["height"] > 2 * low["height"], "it grows"
    ask(page, QUESTION)
    check(page, "an answer on a phone")
    see(page.context.new_page())
    page.set_viewport_size({"width": 1100, "height": 800})
    read_what_was_kept(page)
    repeat(page)
    assert not faults, faults
    strangers = [one for one in asked if not one.startswith((url, "data:", "blob:"))]
    assert not strangers, strangers
    browser.close()
done(
    f"question, {n_coloured} coloured pieces, side by side, edits, Markdown, conversations, storage, files, "
    "settings, presets, themes, pictures, models, keys, stop, phone, axe, no other host"
)
