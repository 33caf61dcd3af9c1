# SPDX-License-Identifier: MIT
"""How a Go template is refused: one error class, with the line and what to do."""

from __future__ import annotations

from eaglecpp.errors import EagleError

__all__ = ["TemplateError"]


class TemplateError(EagleError, ValueError):
    """A template that does not parse, or whose execution fails or does not end in reasonable bounds.

    message: the cause, in Go's words where Go has the same refusal
    line:    1-based line of the template
    name:    name of the template, mostly empty
    hint:    what to do about it
    """

    def __init__(self, message: str, line: int, *, name: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.name = name
        self.hint = hint

    def __str__(self) -> str:
        text = f"template: {self.name}:{self.line}: {self.message}"
        return f"{text} ({self.hint})" if self.hint else text
