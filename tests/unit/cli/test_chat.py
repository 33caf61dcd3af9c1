# SPDX-License-Identifier: MIT
"""The chat without a terminal: scripted input, a real tiny model, captured output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eaglecpp.chat.message import Role
from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.model import RunModel
from eaglecpp.conversations.saved import ChatFolder
from eaglecpp.opening.find import Found
from helpers.opening import found_file
from helpers.tiny_projector import make_image, make_projector

if TYPE_CHECKING:
    from conftest import Models

Talk = Callable[..., Chat]
SHORT = {"n_threads": 1, "max_tokens": 12, "temperature": 0.0, "n_ctx": 512}


def said(chat: Chat) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in chat.conversation.messages]


def with_modelfile(models: Models, text: str) -> Found:
    """The tiny pair with a Modelfile of its own."""
    return found_file(models.target, text, models.draft)


# Turns


def test_old_messages_are_left_out_loudly_and_stay_saved(
    talk: Talk, folder: ChatFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "the man and the dog say one thing to all of us and then they go out " * 3
    chat = talk(*[f"{index} {long}" for index in range(8)], options={"n_ctx": 512})
    err = capsys.readouterr()
    assert "no longer sees" in err.err
    assert "up to 2048" in err.err
    assert chat.conversation.n_left_out > 0
    assert chat.model.engine.timings.prompt_n < 9 * 512
    saved = folder.latest()
    assert saved is not None
    assert len(saved.messages) == 16, "nothing of the conversation itself is lost"


# What a model brings along


def test_the_models_own_messages_are_shown_and_stay(
    talk: Talk, models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    source = with_modelfile(models, "SYSTEM Be brief.\nMESSAGE user shown\nMESSAGE assistant first\n")
    chat = talk("hello", "/clear", "again", source=source)
    out = capsys.readouterr().out
    assert out.startswith(">>> shown\nfirst\n")
    prompt = [(m.role, m.content) for m in chat.conversation.prompt()]
    assert prompt[:4] == [
        ("system", "Be brief."), ("user", "shown"), ("assistant", "first"), ("user", "again"),
    ]  # fmt: skip


def test_options_of_the_command_line_beat_the_models_and_set_beats_both(models: Models) -> None:
    source = with_modelfile(models, "PARAMETER top_k 7\nPARAMETER top_p 0.5\nPARAMETER num_ctx 256\n")
    model = RunModel(source, {"top_k": 9, "n_threads": 1})
    assert (model.sampling.top_k, model.sampling.top_p, model.engine.n_ctx) == (9, 0.5, 256)
    assert model.sampling.min_p == 0.0, "Ollama's default, not llama.cpp's"
    assert not model.set_parameter("top_k", 3)
    assert model.sampling.top_k == 3
    assert model.set_parameter("num_ctx", 128), "the model has to be loaded again"
    assert model.engine.n_ctx == 128
    model.close()


def test_a_drafter_of_the_models_own_that_does_not_fit_is_left_out_loudly(
    models: Models, base_model: Path, capsys: pytest.CaptureFixture[str], talk: Talk
) -> None:
    own = found_file(base_model, "", models.draft)
    chat = talk("hello", source=own)
    assert "running without the drafter, which does not fit: " in capsys.readouterr().err
    assert not chat.model.engine.has_draft
    assert len(said(chat)) == 2


# Saving


def test_every_turn_is_saved_and_can_be_gone_on_with(talk: Talk, folder: ChatFolder) -> None:
    seen: list[int] = []

    def look(default: str) -> str:
        saved = folder.latest()
        seen.append(0 if saved is None else len(saved.messages))
        return "more"

    chat = talk(look, look, look, "/set system Be brief.", "/set parameter top_k 5", "/strategy chain:2")
    assert seen == [0, 2, 4]
    saved = folder.latest()
    assert saved is not None
    assert (saved.system, saved.parameters, saved.strategy) == ("Be brief.", {"top_k": 5}, "")
    chat.reply(partial(chat.session.stream, "once more"))
    saved = folder.latest()
    assert saved is not None and saved.strategy == "chain:2"
    again = talk("go on", saved=saved)
    assert said(again)[:8] == said(chat)
    assert again.conversation.system == "Be brief."
    assert len(list(folder.directory.glob("*.json"))) == 1


def test_older_chats_are_found_by_what_was_said(talk: Talk, folder: ChatFolder) -> None:
    talk("of whales")
    talk("of apples")
    assert [chat.messages[0].content for chat in folder.chats()] == ["of apples", "of whales"]
    assert [chat.messages[0].content for chat in folder.chats("WHALES")] == ["of whales"]


def test_nohistory_saves_nothing(talk: Talk, folder: ChatFolder) -> None:
    talk("hello", history=False)
    assert folder.latest() is None
    talk("/set nohistory", "hello")
    assert folder.latest() is None
    talk("/set nohistory", "hello", "/set history")
    assert folder.latest() is not None


def test_a_disk_that_refuses_does_not_end_the_chat(
    talk: Talk, folder: ChatFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.directory.parent.mkdir(exist_ok=True)
    folder.directory.write_text("a file where the folder should be")
    chat = talk("hello", "more")
    assert len(said(chat)) == 4
    assert "error: " in capsys.readouterr().err


def test_a_picture_that_cannot_be_read_is_said_and_left_behind(talk: Talk, tmp_path: Path) -> None:
    good, damaged = tmp_path / "good.png", tmp_path / "damaged.png"
    good.write_bytes(make_image(1))
    damaged.write_bytes(make_image(1)[:200])
    chat = talk(f"/read {good}", "hello there")  # no projector: nothing to go with the message
    assert chat.images == [] and len(chat.conversation.messages) == 2
    mmproj = {"mmproj": str(make_projector(tmp_path / "mmproj.gguf", 64))}
    seeing = talk(
        f"/read {damaged}", "what is it", "hello there", f"/read {good}", "and this", options=mmproj
    )
    asked = [message for message in seeing.conversation.messages if message.role == Role.USER]
    assert [len(message.images) for message in asked] == [0, 1] and seeing.images == []
