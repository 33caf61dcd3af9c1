# SPDX-License-Identifier: MIT
"""The page of `eaglecpp serve` in a headless Chromium: a question, drafted tokens in colour, stop, side by
side, a phone, and that nothing is asked of another host. EAGLECPP_CHROMIUM names the browser,
EAGLECPP_SCREENSHOTS a folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from common import done
from playwright.sync_api import Page, expect, sync_playwright
from serving import serving

BROWSER = os.environ.get("EAGLECPP_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SHOTS = os.environ.get("EAGLECPP_SCREENSHOTS")
QUESTION = "What does os.path.join do?"


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS, f"{name}.png")))


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
    shot(page, "page-light")
    page.get_by_role("switch", name="Side by side").check()
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".pair .answer")).to_have_count(2)
    expect(page.get_by_text("the speed without drafting")).to_be_visible(timeout=120_000)
    both = page.locator(".pair .answer .text").all_inner_texts()
    assert both[0] == both[1] == text, both
    assert page.locator(".pair .answer").nth(1).locator(".acc").count() == 0
    page.emulate_media(color_scheme="dark")
    shot(page, "page-dark")
    page.get_by_role("switch", name="Side by side").uncheck()
    page.reload()
    expect(page.locator(".turn.assistant .text").first).to_contain_text("Join two or more")
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
    shot(page, "page-phone")
    assert not faults, faults
    strangers = [one for one in asked if not one.startswith((url, "data:", "blob:"))]
    assert not strangers, strangers
    browser.close()
done(f"question, {n_coloured} coloured pieces, side by side, reload, keys, stop, phone, no other host")
