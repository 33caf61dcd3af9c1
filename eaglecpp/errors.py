# SPDX-License-Identifier: MIT
"""Every exception that eaglecpp raises on purpose, one class per cause, all subclasses of `EagleError`.

Messages say what was expected, what was found, where, and what to do. The extension raises these classes by
importing this module, so the names are part of its contract. Misuse of a call raises an
`InvalidArgumentError`, which is also a `TypeError` (a wrong type) or a `ValueError` (a value that cannot be),
as usual in Python; a bare `TypeError` or `ValueError` is a fault of ours. Conversion has its own base class,
`eaglecpp.convert.ConvertError`.
"""

from __future__ import annotations

__all__ = [
    "ContextFullError",
    "DataError",
    "EagleError",
    "EngineBrokenError",
    "EngineBusyError",
    "GgufError",
    "GrammarError",
    "InvalidArgumentError",
    "InvalidTypeError",
    "InvalidValueError",
    "MismatchError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "PlaceLostError",
    "QueueFullError",
    "TrainError",
    "UnsupportedError",
    "VersionError",
]


class EagleError(Exception):
    """Base class of all errors of eaglecpp; catch this to catch them all."""


class InvalidArgumentError(EagleError):
    """An argument that cannot be used as it is. Base class of the two below: whoever serves requests tells
    the caller these, and logs every other `TypeError` and `ValueError`.
    """


class InvalidTypeError(InvalidArgumentError, TypeError):
    """An argument of a wrong type."""


class InvalidValueError(InvalidArgumentError, ValueError):
    """An argument of the right type with a value that cannot be."""


class GgufError(EagleError):
    """A GGUF file cannot be read: not a GGUF, truncated, inconsistent, or with implausible sizes."""


class MismatchError(EagleError):
    """The drafter does not fit the target: other width, vocabulary, tokenizer or layer count."""


class UnsupportedError(EagleError):
    """Something eaglecpp or the installed llama.cpp cannot do: an architecture, a backend, an argument."""


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


class OutOfMemoryError(EagleError):
    """Weights, caches or compute buffers did not fit into the memory of a device."""


class PlaceLostError(EagleError):
    """An `AsyncEngine` ended a generation that had kept its place for `place_s` while others waited."""


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
