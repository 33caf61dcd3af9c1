# SPDX-License-Identifier: MIT
"""Tests `eaglecpp serve` behind Open WebUI, which runs from its package and is driven by a headless Chromium.
Open WebUI finds the models through Ollama's API, and streams two answers in one conversation. The test is
then repeated with OpenAI's API. EAGLECPP_CHROMIUM names the browser.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from common import IS_DEMO, done
from playwright.sync_api import Page, expect, sync_playwright
from serving import MODEL, serving

from helpers.serve_process import free_port

BROWSER = os.environ.get("EAGLECPP_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
START_S = 900  # maximum seconds for the start, at which Open WebUI imports many packages
WAIT_MS = 300_000
OFF = ("WEBUI_AUTH", "ENABLE_VERSION_UPDATE_CHECK", "ENABLE_TITLE_GENERATION", "ENABLE_TAGS_GENERATION",
       "ENABLE_FOLLOW_UP_GENERATION", "ENABLE_AUTOCOMPLETE_GENERATION", "ANONYMIZED_TELEMETRY")  # fmt: skip
QUESTION, EXPECTED = "What does os.path.join do?", "Join two or more pathname components"


@contextlib.contextmanager
def web_ui(url: str, *, over_openai: bool) -> Iterator[str]:
    """Starts a new Open WebUI for one user, which contacts no other host, and yields its address."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+") as log:
        environment = {
            **os.environ,
            **dict.fromkeys(OFF, "False"),
            "DATA_DIR": folder,
            "WEBUI_SECRET_KEY": "x",
            "ENABLE_OLLAMA_API": str(not over_openai),
            "OLLAMA_BASE_URL": url,
            "ENABLE_OPENAI_API": str(over_openai),
            "OPENAI_API_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "x",
            "DEFAULT_MODELS": MODEL,
            "RAG_EMBEDDING_ENGINE": "ollama",  # with its default engine, Open WebUI would download a model
            "OFFLINE_MODE": "True",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "True",
            # The descriptions of its own tools are longer than the context of the demo model.
            "DEFAULT_MODEL_METADATA": '{"capabilities": {"builtin_tools": false}}',
        }
        program = Path(sys.executable).with_name("open-webui")
        command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            end = time.monotonic() + START_S
            while True:
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10),
                ):
                    break
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise RuntimeError(f"Open WebUI did not start:\n{log.read()[-4000:]}")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def ask(page: Page, text: str, n_answers: int) -> str:
    """Asks a question and returns the complete answer."""
    field = page.locator("#chat-input")
    field.click(timeout=WAIT_MS)
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    answers = page.locator(".chat-assistant")
    expect(answers).to_have_count(n_answers, timeout=WAIT_MS)
    expect(page.get_by_label("Regenerate").nth(n_answers - 1)).to_be_attached(timeout=WAIT_MS)
    return str(answers.nth(n_answers - 1).inner_text())


with serving() as url, sync_playwright() as tools:
    browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
    for over_openai in (False, True):
        with web_ui(url, over_openai=over_openai) as address:
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(address, timeout=WAIT_MS)
            news = page.get_by_role("dialog")  # this dialog shows the release notes of this version
            expect(news).to_be_visible(timeout=WAIT_MS)
            news.get_by_role("button").last.click()
            expect(news).to_be_hidden(timeout=WAIT_MS)
            expect(page.get_by_text(MODEL).first).to_be_visible(timeout=WAIT_MS)
            said = ask(page, QUESTION, 1)
            assert said.strip() and (not IS_DEMO or EXPECTED in said), said
            assert ask(page, "What is len?", 2).strip()
            page.close()
    browser.close()
done("models, a question, a second one; over Ollama's API and over OpenAI's")
