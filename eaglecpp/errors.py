# SPDX-License-Identifier: MIT
"""Every exception that eaglecpp raises on purpose: one class per cause, all subclasses of `EagleError`.

Messages state what was expected, what was found, where, and what to do. The extension imports this module to
raise these classes, so their names are part of its contract. Misuse of a call raises an
`InvalidArgumentError`, which is also a `TypeError` or a `ValueError`. A bare `TypeError` or `ValueError` is a
bug in eaglecpp. `eaglecpp.convert.errors` has the exceptions for checkpoints and their conversion.
"""

from __future__ import annotations

try:
    from eaglecpp.convert import errors as of_convert
except ModuleNotFoundError as error:  # only the installed package contains eaglecpp.convert
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
    """The drafter or an adapter does not fit the target, because its width, vocabulary, tokenizer or layers
    differ.
    """


class ContextFullError(InvalidValueError):
    """The prompt does not fit the context. Also a `ValueError`, which llama_cpp raises in this case."""


class DataError(EagleError):
    """Unusable training data: a line that is not a record, hidden states with NaN, or a cache or file
    of answers made with another target.
    """


class TrainError(EagleError):
    """A training run that cannot start, continue or finish: no state to resume, a directory in use, or a
    result that computes other values than the trained drafter.
    """


class InvalidStateError(EagleError, ValueError):
    """The object cannot do this now: it is closed, not started, or lacks what the call needs."""


class OutOfMemoryError(EagleError):
    """Weights, caches or compute buffers did not fit into the memory of a device."""


class PreemptedError(EagleError):
    """An `AsyncEngine` stopped a generation that had held its slot for more than `slot_time_s` seconds while
    other requests were queued.
    """


class QueueFullError(EagleError):
    """The queue of an `AsyncEngine` is full."""


class EngineBusyError(EagleError):
    """The engine or session is in use by another thread, or a newer generation took the session over."""


class EngineBrokenError(EagleError):
    """llama.cpp failed an internal check. The process survives, but this engine must be closed and opened
    again.
    """


class GrammarError(EagleError):
    """A GBNF grammar or JSON schema does not parse, or forbids every continuation."""


class ModelNotFoundError(EagleError):
    """A model reference does not resolve to a file."""


class VersionError(EagleError):
    """The installed llama-cpp-python, or the llama.cpp library that it loads, is not the version for which
    the extension was built.
    """


class TemplateError(EagleError, ValueError):
    """A template does not parse, fails while it runs, or exceeds its limits.

    message: the cause, with Go's wording where Go raises the same error
    line:    1-based line of the template
    name:    name of the template, usually empty
    hint:    what to do about the error
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


for _class in [*globals().values()]:
    if isinstance(_class, type):
        _class.__module__ = __name__  # tracebacks show the module from which users import the class
