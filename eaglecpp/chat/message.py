# SPDX-License-Identifier: MIT
"""Messages of a conversation as plain values: `Message`, `ToolCall`, `Role`.

The chat APIs of Ollama and OpenAI share these fields; `from_dict` reads the messages of both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from eaglecpp.chat.images import checked_image, decoded_image, image_mark, image_of_url, without_images
from eaglecpp.errors import InvalidValueError


class Role(StrEnum):
    """The usual roles. A message may have any other role that the model's template supports."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class ToolCall:
    """A tool call by a model. arguments: JSON values by parameter name."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    @classmethod
    def from_dict(cls, call: Mapping[str, Any]) -> ToolCall:
        """Reads a call `{"id", "function": {"name", "arguments"}}`, with arguments as an object or as JSON
        text.

        Raises InvalidValueError for other values.
        """
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidValueError("tool call: expected an object with function.name")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) or {}  # "null" and PHP's "[]" mean no arguments
            except (ValueError, RecursionError) as error:
                raise InvalidValueError(
                    f"tool call {function['name']}: arguments are not JSON: {error}"
                ) from None
        if not isinstance(arguments, Mapping):
            raise InvalidValueError(
                f"tool call {function['name']}: expected an object of arguments, found {arguments!r}"
            )
        return cls(function["name"], dict(arguments), str(call.get("id") or ""))

    def to_dict(self) -> dict[str, Any]:
        """Returns `{"type", "function": {"name", "arguments"}}`, with the id if the call has one."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        call: dict[str, Any] = {"type": "function", "function": function}
        return {"id": self.id, **call} if self.id else call


@dataclass(frozen=True)
class Message:
    """A message of a conversation.

    thinking: the reasoning text before an assistant's content
    images:   bytes of the images; the content has their marks (`eaglecpp.chat.images`)
    attached: number of characters at the content's beginning that are image marks and file texts
    """

    role: str
    content: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""
    images: tuple[bytes, ...] = field(default=(), repr=False)
    attached: int = 0

    @property
    def text(self) -> str:
        """The content without the marks of its images."""
        return without_images(self.content, self.images)

    @property
    def typed(self) -> str:
        """The part of the content that the user typed, without attachments."""
        return without_images(self.content[self.attached :], self.images)

    @classmethod
    def from_dict(cls, message: Mapping[str, Any]) -> Message:
        """Reads a message of the Ollama or OpenAI chat API.

        Images are in the field `images`, as in Ollama's API, or are parts of the content, as in OpenAI's API.
        The marks of images from the field `images` go before the text. Raises InvalidValueError for a missing
        role, for content other than text and images, and for an unsupported image.
        """
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidValueError(f"message: expected a role, found {role!r}")
        former = message.get("function_call")
        calls = message.get("tool_calls") or ([{"function": former}] if former else ())
        if not isinstance(calls, list | tuple):
            raise InvalidValueError(f"message: tool_calls must be a list, found {type(calls).__name__}")
        thinking = (message.get(key) for key in ("thinking", "reasoning_content", "reasoning"))
        content, images = _content(message.get("content"))
        before = _images(message.get("images"))
        return cls(
            # OpenAI's API has other names for these two roles
            role={"developer": "system", "function": "tool"}.get(role, role),
            content="".join(mark for mark in map(image_mark, before) if mark not in content) + content,
            thinking=str(next(filter(None, thinking), "")),
            tool_calls=tuple(ToolCall.from_dict(call) for call in calls),
            tool_name=str(message.get("tool_name") or message.get("name") or ""),
            tool_call_id=str(message.get("tool_call_id") or ""),
            images=(*before, *images),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the message as JSON values without empty fields, for Jinja templates."""
        values: dict[str, Any] = {"role": str(self.role), "content": self.content}
        if self.thinking:
            values |= {"thinking": self.thinking, "reasoning_content": self.thinking}
        if self.tool_calls:
            values["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_name:
            values |= {"tool_name": self.tool_name, "name": self.tool_name}
        if self.tool_call_id:
            values["tool_call_id"] = self.tool_call_id
        return values


def _content(content: object) -> tuple[str, list[bytes]]:
    """Returns a message's content as one text, and the images in the content. If the content is a list of
    parts, joins the parts.
    """
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise InvalidValueError(f"message: content must be text, found {type(content).__name__}")
    texts: list[str] = []
    images: list[bytes] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind == "image_url":
            url = part.get("image_url")
            images.append(image_of_url(url.get("url") if isinstance(url, Mapping) else url))
            texts.append(image_mark(images[-1]))
        elif kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise InvalidValueError(f"message: expected text or image blocks, found type {kind!r}")
    return "".join(texts), images


def _images(images: object) -> list[bytes]:
    """Returns a message's images as bytes. images: bytes, or base64 texts as in Ollama's API."""
    if not (images is None or isinstance(images, list | tuple)):
        raise InvalidValueError(f"message: images must be a list, found {type(images).__name__}")
    return [checked_image(one) if isinstance(one, bytes) else decoded_image(one) for one in images or ()]
