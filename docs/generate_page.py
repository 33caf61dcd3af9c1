# SPDX-License-Identifier: MIT
"""Takes screenshots of the server's page in Chromium, with `eaglecpp serve smollm2`.

Run `python tests/clients/run.py serve_page`, then
`build/clients/serve_page/bin/python docs/generate_page.py`. The screenshots show this machine's speeds.
EAGLECPP_CHROMIUM is the path of the browser.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "clients"))

from serving import serving  # noqa: E402

BROWSER = os.environ.get("EAGLECPP_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def ask(page: Page, text: str) -> None:
    """Asks a question, waits for the end of the answer, and moves the pointer away."""
    page.get_by_label("Your question").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".figures").last).to_contain_text("tokens/s")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=120_000)


def take(page: Page, name: str) -> None:
    """Saves a screenshot with few colours, so that the file is small."""
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(160).save(DOCS / name, optimize=True)


def main() -> None:
    with serving("-c", "2048", model="smollm2") as url, sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 800})
        page.goto(url)
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Temperature").fill("0")
        page.get_by_role("button", name="Done").click()
        ask(page, "Write a Python function that says whether a word is a palindrome.")
        take(page, "serve-light.png")
        page.emulate_media(color_scheme="dark")
        page.keyboard.press("Control+k")
        page.get_by_role("switch", name="Side by side").check(force=True)
        ask(page, "Name three uses of salt.")
        take(page, "serve-dark.png")
        page.get_by_role("switch", name="Side by side").uncheck(force=True)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 360, "height": 700})
        page.keyboard.press("Control+k")
        take(page, "serve-phone.png")
        browser.close()


if __name__ == "__main__":
    main()
