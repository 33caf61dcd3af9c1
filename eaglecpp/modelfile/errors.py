# SPDX-License-Identifier: MIT
"""What can go wrong with a Modelfile, as values.

`ModelfileError` refuses a file and says where and what to do. `Notice` is for what a reader should know
although the file is accepted (a deprecated parameter). Nothing here prints: the command
line and the server decide how a notice is shown.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from eaglecpp.errors import EagleError


@dataclass(eq=False, repr=False)
class ModelfileError(EagleError, ValueError):
    """A Modelfile that is refused.

    message:      the cause
    line, column: 1-based place where the offending word or quote starts; None where the file as a whole is
                  meant (as without FROM)
    file:         name of the Modelfile, None when the text came from elsewhere
    hint:         what to do about it
    """

    message: str
    _: KW_ONLY
    line: int | None = None
    column: int | None = None
    file: str | None = None
    hint: str = ""

    def __str__(self) -> str:
        where = _location(self.file, self.line, self.column)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True)
class Notice:
    """Something about an accepted Modelfile that its author should know."""

    message: str
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        where = _location(self.file, self.line, None)
        return f"{where}: {self.message}" if where else self.message


def _location(file: str | None, line: int | None, column: int | None) -> str:
    """`Modelfile:3:1`, or `line 3` when there is no file name, or the empty string."""
    if file is None:
        return "" if line is None else f"line {line}"
    return ":".join([file, *[str(number) for number in (line, column) if number is not None]])
