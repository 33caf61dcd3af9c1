# SPDX-License-Identifier: MIT
"""The page of `eaglecpp serve` in a headless Chromium: a question, drafted tokens in colour, stop, side by
side, edits and what they replace, the loaded model, the keyboard alone, a phone, what axe finds in all of
them, light and dark, and that nothing is asked of another host. EAGLECPP_CHROMIUM names the browser,
EAGLECPP_SCREENSHOTS a folder.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

from common import done
from playwright.sync_api import Page, expect, sync_playwright
from serving import serving

BROWSER = os.environ.get("EAGLECPP_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SHOTS = os.environ.get("EAGLECPP_SCREENSHOTS")
QUESTION = "What does os.path.join do?"
AXE = Path(sys.prefix, "node_modules", "axe-core", "axe.min.js").read_text(encoding="utf-8")


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS, f"{name}.png")))


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
    for _ in range(30):
        page.keyboard.press("Tab")
        told = page.evaluate(
            "() => { const e = document.activeElement, s = getComputedStyle(e);"
            "return [e.id || e.textContent, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2] }"
        )
        reached.append((told[0], told[1]))
        if told[0] == "send":
            break
    names = [name for name, _ in reached]
    wanted = ["model", "drafting", "compare", "setup-open", "new", "log", "question", "send"]
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
    page.get_by_role("button", name="Edit").first.click()
    expect(question).to_have_value(QUESTION)
    expect(page.get_by_text("the answers it had are kept")).to_be_visible()
    shot(page, "page-editing")
    check(page, "editing")
    assert turns.all_inner_texts() == before, "nothing was sent yet"
    page.reload()
    assert turns.all_inner_texts() == before
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_role("button", name="Cancel").click()
    expect(question).to_have_value("")
    page.get_by_role("button", name="Edit").first.click()
    ask(page, "What is len?")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(turns.first).to_contain_text("What is len?")
    shot(page, "page-edited")
    check(page, "an edited question")
    page.reload()
    page.get_by_role("button", name="Earlier version").click()
    expect(turns.first).to_contain_text(QUESTION)
    expect(turns).to_have_count(len(before))
    expect(page.locator(".turn.assistant .text").first).to_contain_text("Join two or more")
    page.get_by_role("button", name="Regenerate").last.click()
    expect(page.get_by_text("3 of 3")).to_be_visible(timeout=120_000)  # the first, side by side, and this
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Delete this conversation").click()
    expect(turns).to_have_count(0)
    shot(page, "page-deleted")
    page.get_by_role("button", name="Undo").click()
    expect(turns).to_have_count(len(before))
    status = page.get_by_role("status")
    expect(status).to_contain_text("is back")
    box = status.bounding_box()
    assert box is not None and box["width"] > 100 and box["height"] > 10, "it can be seen"


def open_on_the_loaded_model(page: Page, url: str) -> None:
    """Whatever model was picked last in this browser."""
    page.evaluate("localStorage.setItem('eaglecpp.model', JSON.stringify('another:latest'))")
    page.route("**/api/tags", lambda route: route.fulfill(json={"models": [
        {"name": "another:latest"}, *requests_json(url, "/api/tags")["models"]]}))  # fmt: skip
    page.reload()
    loaded = requests_json(url, "/api/ps")["models"][0]["name"]
    expect(page.locator("#model")).to_have_value(loaded)
    page.unroute("**/api/tags")
    page.route("**/api/tags", lambda route: route.fulfill(json={"models": []}))
    page.route("**/api/ps", lambda route: route.fulfill(json={"models": []}))
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("eaglecpp pull NAME")
    check(page, "without a model")
    page.unroute("**/api/tags")
    page.unroute("**/api/ps")
    page.reload()


def requests_json(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return json.loads(answer.read())


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your question").fill(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)


with serving() as url, sync_playwright() as tools:
    browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.goto(url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Strategy").fill("chain:3")
    page.get_by_label("System prompt").fill("")
    page.get_by_role("button", name="Done").click()
    ask(page, QUESTION)
    answer = page.locator(".turn.assistant .text").first
    expect(answer).to_contain_text("Join two or more pathname components")
    n_coloured = answer.locator(".acc").count()
    assert n_coloured > 0, "drafted tokens are in colour"
    text = answer.inner_text()
    assert page.locator("#s-speed").inner_text() != "–" and "%" in page.locator("#s-accepted").inner_text()
    check(page, "an answer")
    shot(page, "page-light")
    page.get_by_role("button", name="Settings").click()
    check(page, "settings")
    page.get_by_role("button", name="Done").click()
    use_keyboard_only(page)
    page.get_by_role("switch", name="Side by side").check()
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".pair .answer")).to_have_count(2)
    expect(page.get_by_text("the speed without drafting, measured")).to_be_visible(timeout=120_000)
    figures = page.locator(".pair .figures").first.inner_text()
    assert figures.count("×") == 1 and "plain" not in figures, figures
    both = page.locator(".pair .answer .text").all_inner_texts()
    assert both[0] == both[1] == text, both
    assert page.locator(".pair .answer").nth(1).locator(".acc").count() == 0
    check(page, "side by side")
    page.emulate_media(color_scheme="dark")
    shot(page, "page-dark")
    page.emulate_media(color_scheme="light")
    page.get_by_role("switch", name="Side by side").uncheck()
    page.reload()
    expect(page.locator(".turn.assistant .text").first).to_contain_text("Join two or more")
    edit_and_go_back(page)
    open_on_the_loaded_model(page, url)
    page.keyboard.press("Control+k")
    expect(page.locator(".turn")).to_have_count(0)
    markup = (
        "**bold** `code` <img src=x onerror=alert(1)> [x](javascript:a(1))\n\n- one\n- two\n\n```\n1\n```"
    )
    shown = page.evaluate(
        "async (text) => { const m = await import('/static/markdown.js');"
        "const d = document.createElement('div'); d.append(m.render(text)); return d.innerHTML }",
        markup,
    )
    assert "<strong>bold</strong>" in shown and "<li>two</li>" in shown and "<pre" in shown, shown
    assert "<img" not in shown and "javascript:" not in shown.replace("(javascript:", ""), shown
    page.get_by_label("Your question").fill("What is len?")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)
    page.set_viewport_size({"width": 360, "height": 700})
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, f"the page is {width} wide on a phone"
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("button", name="New conversation").first).to_be_visible()
    check(page, "conversations on a phone")
    page.get_by_role("button", name="Conversations").click()
    ask(page, QUESTION)
    check(page, "an answer on a phone")
    shot(page, "page-phone")
    assert not faults, faults
    strangers = [one for one in asked if not one.startswith((url, "data:", "blob:"))]
    assert not strangers, strangers
    browser.close()
done(
    f"question, {n_coloured} coloured pieces, side by side, edits, reload, keys, stop, phone, axe, "
    "no other host"
)
