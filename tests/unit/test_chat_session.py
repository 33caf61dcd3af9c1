# SPDX-License-Identifier: MIT
"""Tests a conversation with a memory, undo and saving."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import ChatSession, Engine
from eaglecpp.conversations.served import ServerAnswers, ServerRefusedError
from helpers.http_server import DRAFT, MODEL, TARGET, TestServer
from helpers.models import Models
from helpers.tiny_projector import make_image, make_projector

SHORT: dict[str, Any] = {"max_tokens": 5, "temperature": 0.0}


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


def test_an_error_and_a_stream_closed_at_once_keep_the_history(engine: Engine) -> None:
    chat = ChatSession(engine)
    with pytest.raises(ValueError, match="top_p"):
        chat.ask("Hi", top_p=2.0)
    assert chat.history == ()
    with pytest.raises(ValueError, match="no question"):
        chat.retry()
    chat.stream("Hi", **SHORT).close()
    assert chat.history == ()
    with chat.stream("Hi", **SHORT) as stream:
        chunk = next(stream)
    assert said(chat)[-1][0] == "assistant" and said(chat)[-1][1].startswith(chunk.text)


def test_an_error_in_the_middle_keeps_the_history_too(engine: Engine) -> None:
    chat = ChatSession(engine)
    chat.ask("one", **SHORT)
    before = chat.history

    def fails(tokens: list[int]) -> bool:
        if len(tokens) == 3:
            raise OSError("what is shown the answer is gone")
        return False

    for call in (partial(chat.ask, "two"), chat.retry):
        with pytest.raises(OSError, match="is gone"):
            call(stop_when=fails, **SHORT)
        assert chat.history == before
    long = "the man and the dog say one thing to all of us and then they go out "
    while not chat.left_out:
        chat.ask(long * 3, **SHORT)
    before, n_before = chat.history, chat.left_out
    with pytest.raises(ValueError, match="tokens"):
        chat.ask(long * 100, **SHORT)
    assert (chat.history, chat.left_out) == (before, n_before)


def test_a_question_ends_the_previous_answer(engine: Engine) -> None:
    chat = ChatSession(engine)
    first = chat.stream("one", **SHORT)
    begun = next(first).text
    second = chat.ask("two", **SHORT)
    first.close()
    assert said(chat) == [("user", "one"), ("assistant", begun), ("user", "two"), ("assistant", second.text)]
    next(chat.stream("three", **SHORT))
    assert [role for role, _ in said(chat)][-2:] == ["user", "assistant"], "expected no abandoned turn"


def test_images_are_not_part_of_the_typed_text(models: Models, tmp_path: Path) -> None:
    projector = make_projector(tmp_path / "mmproj.gguf", 64)
    with Engine.open(models.target, n_ctx=256, n_threads=1, mmproj=str(projector)) as engine:
        chat = ChatSession(engine)
        chat.ask("what is it", images=[make_image(1)], **SHORT)
        assert chat.history[0].typed == "what is it"
        assert chat.undo() == "what is it" and chat.history == ()


def test_a_saved_chat_continues(engine: Engine, tmp_path: Path) -> None:
    chat = ChatSession(engine, system="Be brief.")
    chat.ask("Hi", **SHORT)
    path = tmp_path / "talk.json"
    chat.save(path)
    loaded = ChatSession.load(engine, path)
    assert (loaded.history, loaded.system) == (chat.history, "Be brief.")
    loaded.ask("more", **SHORT)
    loaded.save(path)
    assert len(ChatSession.load(engine, path).history) == 4


def test_a_server_can_replace_the_engine() -> None:
    with TestServer() as server, Engine.open(TARGET, DRAFT, n_ctx=512, n_threads=1) as engine:
        here = ChatSession(engine, system="Be brief.")
        there = ChatSession(ServerAnswers(server.url, MODEL), system="Be brief.")
        for chat in (here, there):
            chat.ask("Hi", **SHORT)
            chat.ask("more", **SHORT)
            assert chat.retry(**SHORT).text == chat.history[-1].content
            chat.ask("and then", **SHORT)
            assert chat.undo() == "and then"
            with chat.stream("all of it", **SHORT | {"max_tokens": 200}) as stream:
                first = next(stream).text
        assert said(here)[:4] == said(there)[:4]
        assert said(there)[-1][1].startswith(first)
        before = there.history
        with pytest.raises(ServerRefusedError, match="context"):
            there.ask("word " * 5000, **SHORT)
        assert there.history == before
        with pytest.raises(ServerRefusedError, match="not found"):
            ChatSession(ServerAnswers(server.url, "nosuch")).ask("Hi", **SHORT)
