# SPDX-License-Identifier: MIT
"""Runs a chat without a terminal, with scripted input and a real tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.commands import run_chat
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.chat.settings import ChatSettings
from eaglecpp.cli.open_engine import look_up
from eaglecpp.conversations.saved import ChatFolder, SavedChat
from eaglecpp.opening.find import ModelFiles
from eaglecpp.options import Strategy
from helpers.models import Models

SHORT = {"n_threads": 1, "max_tokens": 12, "temperature": 0.0, "n_ctx": 512}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hides the user's models and chats from every test, and disables downloads."""
    folder = tmp_path / "home"
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("EAGLECPP_HOME", str(folder))
    monkeypatch.setenv("EAGLECPP_MODELS", str(folder / "models"))
    monkeypatch.setenv("OLLAMA_MODELS", str(folder / "ollama"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def folder(home: Path) -> ChatFolder:
    return ChatFolder(home / "chats")


@pytest.fixture
def talk(models: Models, folder: ChatFolder) -> Iterator[Callable[..., Chat]]:
    """Returns a function `talk("hello", "/bye")`, which types these lines into a chat, then Ctrl+D, and
    returns the chat.

    If one of the lines is an exception, typing it raises the exception. If a line is a function, it receives
    the text that the chat has already put into the line, and returns the whole line.
    """
    opened: list[Chat] = []

    def run(
        *lines: Any,
        source: ModelFiles | None = None,
        options: dict[str, Any] | None = None,
        saved: SavedChat | None = None,
        # a fixed strategy, because the drafts of `auto` depend on the clock
        strategy: str | None = "chain:3",
        **settings: Any,
    ) -> Chat:
        rest = list(lines)

        def ask(prompt: str, default: str) -> str:
            line = rest.pop(0) if rest else EOFError()
            if isinstance(line, BaseException):
                raise line
            return str(line(default)) if callable(line) else str(line)

        where = source or look_up(str(models.target), str(models.draft))
        wanted = None if strategy is None else Strategy.parse(strategy)
        chosen = ChatSettings(SHORT | (options or {}), wanted, **settings)
        chat = Chat(where, chosen, Screen(is_terminal=False), ask, folder=folder, saved=saved)
        opened.append(chat)
        run_chat(chat)
        assert not rest, "the chat ended before it had read all lines"
        return chat

    yield run
    for chat in opened:
        chat.close()
