# SPDX-License-Identifier: MIT
"""A conversation that remembers, takes back, and is kept."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eaglecpp import ChatSession, Engine
from eaglecpp.conversations.saved import SavedChatError

if TYPE_CHECKING:
    from conftest import Models

SHORT: dict[str, Any] = {"max_tokens": 5, "temperature": 0.0}


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    with Engine.open(models.target, n_ctx=256, n_threads=1) as one:
        yield one


def said(chat: ChatSession) -> list[tuple[str, str]]:
    return [(str(message.role), message.content) for message in chat.history]


def test_questions_and_answers_are_remembered(engine: Engine) -> None:
    chat = ChatSession(engine, system="Be brief.")
    first = chat.ask("Hi", **SHORT)
    second = chat.ask("more", **SHORT)
    assert said(chat) == [
        ("user", "Hi"), ("assistant", first.text), ("user", "more"), ("assistant", second.text),
    ]  # fmt: skip
    whole = engine.detokenize(second.prompt_tokens, special=True)
    assert "Be brief." in whole and "Hi" in whole
    assert second.timings.reused_n >= len(first.prompt_tokens)


def test_undo_and_retry(engine: Engine) -> None:
    chat = ChatSession(engine)
    chat.ask("one", **SHORT)
    before = chat.history
    chat.ask("two", **SHORT)
    again = chat.retry(**SHORT)
    assert said(chat)[-2:] == [("user", "two"), ("assistant", again.text)]
    assert chat.undo() == "two"
    assert chat.history == before
    chat.clear()
    with pytest.raises(ValueError, match="no question"):
        chat.retry()


def test_an_error_and_a_stream_closed_at_once_leave_the_history(engine: Engine) -> None:
    chat = ChatSession(engine)
    with pytest.raises(ValueError, match="top_p"):
        chat.ask("Hi", top_p=2.0)
    assert chat.history == ()
    chat.stream("Hi", **SHORT).close()
    assert chat.history == ()
    with chat.stream("Hi", **SHORT) as stream:
        chunk = next(stream)
    assert said(chat)[-1][0] == "assistant" and said(chat)[-1][1].startswith(chunk.text)


def test_what_was_saved_goes_on(engine: Engine, tmp_path: Path) -> None:
    chat = ChatSession(engine, system="Be brief.")
    chat.ask("Hi", **SHORT)
    path = tmp_path / "talk.json"
    chat.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = ChatSession.load(engine, path)
    assert (loaded.history, loaded.system) == (chat.history, "Be brief.")
    loaded.ask("more", **SHORT)
    loaded.save(path)
    assert len(ChatSession.load(engine, path).history) == 4
    path.write_text("{}")
    with pytest.raises(SavedChatError, match="not a saved conversation"):
        ChatSession.load(engine, path)
