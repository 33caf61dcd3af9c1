# SPDX-License-Identifier: MIT
"""Conversations on disk: one JSON file each, complete after every turn, whatever kills the process.

Two processes that continue one conversation do not overwrite each other: the second one gets a file of its
own. Only their owner can read the files.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eaglecpp.chat.message import Message
from eaglecpp.errors import EagleError
from eaglecpp.files import replace_bytes
from eaglecpp.modelfile.parameters import ParameterValue, from_json

__all__ = ["ChatFolder", "SavedChat", "SavedChatError", "new_chat", "read_chat", "write_chat"]

_VERSION = 1
_STALE_S = 3600.0  # no write takes so long: what is still there was left by a process that died


class SavedChatError(EagleError):
    """A saved conversation cannot be read or written."""


@dataclass(frozen=True)
class SavedChat:
    """One conversation. model, draft: the references it was opened with; parameters, strategy: as the user
    set them in the chat, by Modelfile name; created, updated: seconds since 1970.
    """

    id: str
    model: str
    draft: str | None = None
    system: str = ""
    messages: tuple[Message, ...] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    strategy: str = ""
    created: float = 0.0
    updated: float = 0.0
    stamp: tuple[int, int] | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "eaglecpp_chat": _VERSION,
            "id": self.id,
            "model": self.model,
            "draft": self.draft,
            "system": self.system,
            "parameters": dict(self.parameters),
            "strategy": self.strategy,
            "created": self.created,
            "updated": self.updated,
            "messages": [_message_json(message) for message in self.messages],
        }


def new_chat(model: str, draft: str | None = None) -> SavedChat:
    """An empty conversation with an id of its own; nothing is written yet."""
    now = time.time()
    day = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return SavedChat(f"{day}-{secrets.token_hex(3)}", model, draft, created=now, updated=now)


def write_chat(path: Path, chat: SavedChat) -> SavedChat:
    """Writes a conversation in one step; returns it as saved. Raises SavedChatError, which names the file."""
    chat = replace(chat, updated=time.time())
    text = json.dumps(chat.to_json(), ensure_ascii=False, indent=1) + "\n"
    try:
        replace_bytes(path, text.encode("utf-8"), mode=0o600)
    except OSError as error:
        reason = error.strerror or error
        raise SavedChatError(f"{path}: the conversation cannot be saved: {reason}") from error
    return replace(chat, stamp=_stamp(path))


def read_chat(path: Path) -> SavedChat:
    """Reads a conversation. Raises SavedChatError."""
    stamp = _stamp(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return replace(_from_json(data), stamp=stamp)
    except OSError as error:
        raise SavedChatError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SavedChatError(f"{path}: not a saved conversation ({error}); move it away") from error


class ChatFolder:
    """The folder of all saved conversations; it is made when the first one is saved."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def new(self, model: str, draft: str | None = None) -> SavedChat:
        """An empty conversation with an id of its own; nothing is written yet."""
        return new_chat(model, draft)

    def save(self, chat: SavedChat) -> SavedChat:
        """Writes it; returns it as saved, under a new id if another process wrote to it meanwhile.

        Raises SavedChatError, which names the file, when the disk refuses.
        """
        path = self.path(chat)
        try:
            if chat.stamp != _stamp(path):
                chat = replace(self.new(chat.model, chat.draft), **_content(chat))
                path = self.path(chat)
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_stale()
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
        """The conversation that was saved last, of any model or of one; None when there is none.

        Raises SavedChatError for a file that is not a conversation.
        """
        stamps = [(_stamp(path), path) for path in self.directory.glob("*.json")]
        files = [(stamp[0], path) for stamp, path in stamps if stamp is not None]
        for _, path in sorted(files, reverse=True):
            chat = self.load(path)
            if model is None or chat.model == model:
                return chat
        return None

    def load(self, path: Path) -> SavedChat:
        """Reads one file. Raises SavedChatError."""
        return read_chat(path)

    def path(self, chat: SavedChat) -> Path:
        """Its file, written or not."""
        return self.directory / f"{chat.id}.json"

    def _remove_stale(self) -> None:
        for path in self.directory.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    path.unlink()


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever the file does; None for no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _content(chat: SavedChat) -> dict[str, Any]:
    names = ("system", "messages", "parameters", "strategy")
    return {name: getattr(chat, name) for name in names}


def _message_json(message: Message) -> dict[str, Any]:
    values = {"role": str(message.role), "content": message.content, "thinking": message.thinking,
              "images": [base64.b64encode(image).decode() for image in message.images]}  # fmt: skip
    return {name: value for name, value in values.items() if value or name in ("role", "content")}


def _from_json(data: Any) -> SavedChat:
    if not isinstance(data, dict) or data.get("eaglecpp_chat") != _VERSION:
        raise ValueError(f"expected an object with eaglecpp_chat {_VERSION}")
    return SavedChat(
        id=_text(data, "id"),
        model=_text(data, "model"),
        draft=None if data["draft"] is None else _text(data, "draft"),
        system=_text(data, "system"),
        messages=tuple(Message.from_dict(message) for message in data["messages"]),
        parameters={name: from_json(name, value) for name, value in data["parameters"].items()},
        strategy=_text(data, "strategy"),
        created=float(data["created"]),
        updated=float(data["updated"]),
    )


def _text(data: Mapping[str, Any], name: str) -> str:
    if not isinstance(data[name], str):
        raise TypeError(f"{name}: expected a string, found {type(data[name]).__name__}")
    return str(data[name])
