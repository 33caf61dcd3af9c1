# SPDX-License-Identifier: MIT
"""Tests saved conversations. A file is complete or absent, private, and never overwritten by another
process.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from eaglecpp.chat.message import Message
from eaglecpp.conversations.saved import ChatFolder, SavedChatError, new_chat, read_chat

TURNS = (Message("user", "ü \U0001f600"), Message("assistant", "b", "thought"))


@pytest.fixture
def folder(tmp_path: Path) -> ChatFolder:
    return ChatFolder(tmp_path / "data" / "chats")


def test_the_conversation_saved_last_is_the_last_one(folder: ChatFolder) -> None:
    first = folder.save(new_chat("/a.gguf"))
    time.sleep(0.01)
    folder.save(new_chat("/b.gguf"))
    time.sleep(0.01)
    assert folder.latest() is not None and folder.latest("/a.gguf") == first
    again = folder.save(replace(first, messages=TURNS))
    assert folder.latest() == again
    assert folder.latest("/c.gguf") is None
    (folder.directory / "damaged.json").write_text("{")
    assert folder.find(first.id) == again, "other damaged files must not be read"
    assert folder.find(f"../{folder.directory.name}/{first.id}") is None


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_only_the_owner_can_read_it(folder: ChatFolder) -> None:
    assert folder.path(folder.save(new_chat("/m.gguf"))).stat().st_mode & 0o777 == 0o600
    assert folder.directory.stat().st_mode & 0o777 == 0o700


def test_a_chat_that_another_process_continued_is_saved_to_a_new_file(folder: ChatFolder) -> None:
    chat = folder.save(replace(new_chat("/m.gguf"), messages=TURNS[:1]))
    elsewhere = read_chat(folder.path(chat))
    ours = folder.save(replace(chat, messages=TURNS))
    theirs = folder.save(replace(elsewhere, messages=(Message("user", "other"),)))
    assert ours.id == chat.id
    assert theirs.id != chat.id
    assert read_chat(folder.path(ours)).messages == TURNS
    assert [m.content for m in read_chat(folder.path(theirs)).messages] == ["other"]


def test_removing_deletes_only_our_files(folder: ChatFolder) -> None:
    chat = folder.save(new_chat("/m.gguf"))
    newer = folder.save(replace(chat, messages=TURNS))
    folder.remove(chat)
    assert folder.latest() == newer
    folder.remove(newer)
    assert folder.latest() is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"eaglecpp_chat": 2}', '{"eaglecpp_chat": 1, "id": 3}', "\x00" * 40,
     {"messages": [{"role": "user"}, 3]}, {"messages": [{"role": "user", "content": "x", "attached": 2}]},
     {"parameters": {"top_k": "x"}}, {"parameters": {"nope": 1}}],
)  # fmt: skip
def test_an_invalid_file_is_named_and_left_out(
    folder: ChatFolder, content: str | dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    path = folder.path(folder.save(replace(new_chat("/m.gguf"), messages=TURNS)))
    if isinstance(content, dict):
        content = json.dumps(json.loads(path.read_text(encoding="utf-8")) | content)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SavedChatError, match=rf"{path.name} is not a saved conversation"):
        folder.find(path.stem)
    assert folder.latest() is None and f"{path.name} is not a saved conversation" in caplog.text


def test_a_pipe_among_conversations_is_named(folder: ChatFolder, caplog: pytest.LogCaptureFixture) -> None:
    folder.directory.mkdir(parents=True)
    os.mkfifo(folder.directory / "x.json")
    assert folder.latest() is None and "expected a file, found a named pipe" in caplog.text


def test_a_disk_error_leaves_no_file(folder: ChatFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = folder.save(replace(new_chat("/m.gguf"), messages=TURNS))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SavedChatError, match=f"{saved.id}.json: .*No space left"):
        folder.save(replace(saved, messages=TURNS[:1]))
    assert folder.latest() == saved
    assert [path.name for path in folder.directory.iterdir()] == [f"{saved.id}.json"]
