# SPDX-License-Identifier: MIT
"""Conversations on disk: one JSON file each, complete after every turn, whatever kills the process.

Two processes that continue one conversation do not overwrite each other: the second one gets a file of its
own. Only their owner can read the files.
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
    """One conversation. model, draft: the references it was opened with; examples: of the model when it
    began, None where an earlier release saved it; parameters, strategy: as the user set them in the chat, by
    Modelfile name; created, updated: seconds since 1970.
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
        """The same chat with what was said by now."""
        said = tuple(conversation.messages)
        return replace(self, system=conversation.system, examples=conversation.examples, messages=said)

    def continue_in(self, conversation: Conversation) -> None:
        """Makes an empty conversation the saved one, whatever its model says by now: `/save` may have made
        this very chat the model's examples.
        """
        conversation.system = self.system
        conversation.messages = list(self.messages)
        if self.examples is not None:
            conversation.examples = self.examples


def new_chat(model: str, draft: str | None = None) -> SavedChat:
    """An empty conversation with an id of its own; nothing is written yet."""
    now = time.time()
    day = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return SavedChat(f"{day}-{secrets.token_hex(3)}", model, draft, created=now, updated=now)


def write_chat(path: Path, chat: SavedChat) -> SavedChat:
    """Writes a conversation in one step; returns it as saved. Raises SavedChatError, which names the file."""
    chat = replace(chat, updated=time.time())
    text = msgspec.json.format(msgspec.json.encode(replace(chat, stamp=None)), indent=1)
    try:
        replace_bytes(path, text + b"\n", mode=0o600)
    except OSError as error:
        reason = error.strerror or error
        raise SavedChatError(f"{path}: the conversation cannot be saved: {reason}") from error
    return replace(chat, stamp=_stamp(path))


def read_chat(path: Path) -> SavedChat:
    """Reads a conversation. Raises SavedChatError."""
    stamp = _stamp(path)
    try:
        with open_regular(path) as file:
            found = msgspec.json.decode(file.read(), type=SavedChat)
        for message in (*found.messages, *(found.examples or ())):
            _check(message)
        parameters = {name: from_json(name, value) for name, value in found.parameters.items()}
        return replace(found, parameters=parameters, stamp=stamp)
    except OSError as error:
        raise SavedChatError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SavedChatError(f"{path}: not a saved conversation ({error}); move it away") from error


class ChatFolder:
    """The folder of all saved conversations; it is made when the first one is saved."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, chat: SavedChat) -> SavedChat:
        """Writes it; returns it as saved, under a new id if another process wrote to it meanwhile.

        Raises SavedChatError, which names the file, when the disk refuses.
        """
        path = self.path(chat)
        try:
            if chat.stamp != _stamp(path):
                fresh = new_chat(chat.model)
                chat = replace(chat, id=fresh.id, created=fresh.created)
                path = self.path(chat)
            make_private(self.directory)
        except OSError as error:
            reason = error.strerror or error
            raise SavedChatError(f"{path}: the conversation cannot be saved: {reason}") from error
        return write_chat(path, chat)

    def remove(self, chat: SavedChat) -> None:
        """Deletes its file, if there is one and nobody else wrote to it."""
        path = self.path(chat)
        if chat.stamp is not None and chat.stamp == _stamp(path):
            with contextlib.suppress(OSError):
                path.unlink()

    def latest(self, model: str | None = None) -> SavedChat | None:
        """The conversation that was saved last, of any model or of one; None when there is none."""
        return next((chat for chat in self.chats() if model is None or chat.model == model), None)

    def find(self, id: str) -> SavedChat | None:
        """The conversation of that id; None where there is none. Raises SavedChatError."""
        # names in the folder, not a path made of what somebody typed
        return next((read_chat(path) for path in self.directory.glob("*.json") if path.stem == id), None)

    def chats(self, text: str = "") -> Iterator[SavedChat]:
        """Those in which somebody said `text`, whatever its case, the last saved one first. A file that is
        not a conversation is logged and left out.
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
        """Its file, written or not."""
        return self.directory / f"{chat.id}.json"


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever the file does; None for no file."""
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
