# SPDX-License-Identifier: MIT
"""Conversations on disk: one JSON file each, complete after every turn even if the process is killed.

Two processes that continue the same conversation do not overwrite each other's files: the second process
writes a new file. Only the owner can read the files.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from eaglecpp.chat.conversation import Conversation
from eaglecpp.chat.images import checked_image
from eaglecpp.chat.message import Message
from eaglecpp.errors import EagleError
from eaglecpp.files import make_private, open_regular, replace_bytes
from eaglecpp.modelfile.parameters import from_json

_log = logging.getLogger("eaglecpp.conversations")


class SavedChatError(EagleError):
    """A saved conversation cannot be read or written."""


@dataclass(frozen=True)
class SavedChat:
    """One conversation. model, draft: references with which the chat was opened; examples: the model's
    examples when the chat began, None if an earlier release saved the chat; parameters, strategy: settings
    that the user changed in the chat, by Modelfile name; created, updated: seconds since 1970.
    """

    id: str
    model: str
    draft: str | None = None
    system: str = ""
    examples: tuple[Message, ...] | None = None
    messages: tuple[Message, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strategy: str = ""
    created: float = 0.0
    updated: float = 0.0
    eaglecpp_chat: Literal[1] = 1
    stamp: tuple[int, int] | None = field(default=None, compare=False)

    def of(self, conversation: Conversation) -> SavedChat:
        """Returns this chat with the current content of the conversation."""
        messages = tuple(conversation.messages)
        return replace(self, system=conversation.system, examples=conversation.examples, messages=messages)

    def continue_in(self, conversation: Conversation) -> None:
        """Loads the saved chat into an empty conversation. The saved examples replace the conversation's
        examples, because the model's examples may be this same chat, if `/save` turned it into examples.
        """
        conversation.system = self.system
        conversation.messages = list(self.messages)
        if self.examples is not None:
            conversation.examples = self.examples


def new_chat(model: str, draft: str | None = None) -> SavedChat:
    """Returns an empty conversation with a new id. Writes no file."""
    now = time.time()
    day = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return SavedChat(f"{day}-{secrets.token_hex(3)}", model, draft, created=now, updated=now)


@contextlib.contextmanager
def _saving(path: Path) -> Iterator[None]:
    """Turns an OSError inside the `with` block into a SavedChatError, which names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise SavedChatError(f"cannot save the conversation to {path}: {reason}") from error


def write_chat(path: Path, chat: SavedChat) -> SavedChat:
    """Writes a conversation atomically. Returns the conversation as it was saved. Raises SavedChatError,
    which names the file.
    """
    chat = replace(chat, updated=time.time())
    text = msgspec.json.format(msgspec.json.encode(replace(chat, stamp=None)), indent=1)
    with _saving(path):
        replace_bytes(path, text + b"\n", mode=0o600)
    return replace(chat, stamp=_stamp(path))


def read_chat(path: Path) -> SavedChat:
    """Reads a conversation. Raises SavedChatError."""
    stamp = _stamp(path)
    try:
        with open_regular(path) as file:
            chat = msgspec.json.decode(file.read(), type=SavedChat)
        for message in (*chat.messages, *(chat.examples or ())):
            _check(message)
        parameters = {name: from_json(name, value) for name, value in chat.parameters.items()}
        return replace(chat, parameters=parameters, stamp=stamp)
    except OSError as error:
        raise SavedChatError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SavedChatError(f"{path} is not a saved conversation ({error}); move it elsewhere") from error


class ChatFolder:
    """The folder of all saved conversations, which is created when the first conversation is saved."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, chat: SavedChat) -> SavedChat:
        """Writes the chat to its file. Returns the chat as it was saved. If another process has written to
        the file since this process read or wrote it, the chat gets a new id and a new file. Raises
        SavedChatError, which names the file.
        """
        path = self.path(chat)
        with _saving(path):
            if chat.stamp != _stamp(path):
                fresh = new_chat(chat.model)
                chat = replace(chat, id=fresh.id, created=fresh.created)
                path = self.path(chat)
            make_private(self.directory)
        return write_chat(path, chat)

    def remove(self, chat: SavedChat) -> None:
        """Deletes the chat's file, unless another process has written to it."""
        path = self.path(chat)
        if chat.stamp is not None and chat.stamp == _stamp(path):
            with contextlib.suppress(OSError):
                path.unlink()

    def latest(self, model: str | None = None) -> SavedChat | None:
        """Returns the conversation that was saved last; None if there is none. model: only conversations with
        this model; None = with any model.
        """
        return next((chat for chat in self.chats() if model is None or chat.model == model), None)

    def find(self, id: str) -> SavedChat | None:
        """Returns the conversation with that id, or None. Raises SavedChatError."""
        # The id comes from the user. So it is only compared with file names, and never becomes part of a
        # path.
        return next((read_chat(path) for path in self.directory.glob("*.json") if path.stem == id), None)

    def chats(self, text: str = "") -> Iterator[SavedChat]:
        """Yields the conversations with `text` in any message, ignoring case. The conversation that was saved
        last comes first. Invalid files are logged and skipped.
        """
        stamped = [(_stamp(path), path) for path in self.directory.glob("*.json")]
        for _, path in sorted((pair for pair in stamped if pair[0] is not None), reverse=True):
            try:
                chat = read_chat(path)
            except SavedChatError as error:
                _log.warning("%s", error)
                continue
            if not text or any(text.lower() in message.content.lower() for message in chat.messages):
                yield chat

    def path(self, chat: SavedChat) -> Path:
        """Returns the path of a chat's file, which may not exist yet."""
        return self.directory / f"{chat.id}.json"


def _stamp(path: Path) -> tuple[int, int] | None:
    """Returns a value that changes whenever the file changes; None if the file does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _check(message: Message) -> None:
    if not message.role:
        raise ValueError("message: expected a role, found ''")
    if not 0 <= message.attached <= len(message.content):
        raise ValueError(
            f"attached: expected a number of characters of the content, found {message.attached}"
        )
    for image in message.images:
        checked_image(image)
