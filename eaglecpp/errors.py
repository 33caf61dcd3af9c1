# SPDX-License-Identifier: MIT
"""Every exception that eaglecpp raises on purpose, one class per cause, all subclasses of `EagleError`.

Messages say what was expected, what was found, where, and what to do. The extension raises these classes by
importing this module, so the names are part of its contract. Misuse of a call raises an
`InvalidArgumentError`, which is also a `TypeError` (a wrong type) or a `ValueError` (a value that cannot be),
as usual in Python; a bare `TypeError` or `ValueError` is a fault of ours. `eaglecpp.convert.errors` has those
of checkpoints and their conversion.
"""

from __future__ import annotations

try:
    from eaglecpp.convert import errors as of_convert
except ModuleNotFoundError as error:  # only the installed package has it
    raise ImportError(
        "the checkout's sources hide the installed eaglecpp: start Python in another directory"
    ) from error

EagleError = of_convert.EagleError
InvalidArgumentError = of_convert.InvalidArgumentError
InvalidTypeError = of_convert.InvalidTypeError
InvalidValueError = of_convert.InvalidValueError
GgufError = of_convert.GgufError
UnsupportedError = of_convert.UnsupportedError


class MismatchError(EagleError):
    """The drafter, or an adapter, does not fit the target: other width, vocabulary, tokenizer, layers."""


class ContextFullError(InvalidValueError):
    """The prompt does not fit the context. Also a `ValueError`, which is what llama_cpp raises in this
    case.
    """


class DataError(EagleError):
    """Training data cannot be used: a line that is not a record, features that are not numbers, a cache or a
    file of answers made with another target.
    """


class TrainError(EagleError):
    """A training cannot start, continue or end: no state to resume, a directory in use, a result that does
    not compute what was trained.
    """


class InvalidStateError(EagleError, ValueError):
    """A call that its object cannot answer now: it is closed, has not begun, or has nothing to do it with."""


class OutOfMemoryError(EagleError):
    """Weights, caches or compute buffers did not fit into the memory of a device."""


class PreemptedError(EagleError):
    """An `AsyncEngine` stopped a generation that had held its slot longer than `slot_time_s` while requests
    were queued.
    """


class QueueFullError(EagleError):
    """The queue of an `AsyncEngine` is full."""


class EngineBusyError(EagleError):
    """The engine or session is in use by another thread, or a newer generation took the session over."""


class EngineBrokenError(EagleError):
    """llama.cpp failed an internal check; the process survives, but this engine has to be closed and
    opened again.
    """


class GrammarError(EagleError):
    """A GBNF grammar or JSON schema does not parse, or forbids every continuation."""


class ModelNotFoundError(EagleError):
    """A model reference does not lead to a file."""


class VersionError(EagleError):
    """The installed llama-cpp-python, or the library it loads, is not the one that the extension was built
    for.
    """


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


for _one in [*globals().values()]:
    if isinstance(_one, type):
        _one.__module__ = __name__  # a traceback names a class as users import it
