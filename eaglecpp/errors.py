# SPDX-License-Identifier: MIT
"""Every exception eaglecpp raises on purpose, one class per cause, all below `EagleError`.

Messages say what was expected, what was found, where, and what to do. The extension raises these classes by
importing this module, so the names are part of its contract. Misuse of a call (a wrong type, a value out of
range) is `TypeError` or `ValueError`, as everywhere in Python. Converting has its own root,
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
    "MismatchError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "QueueFullError",
    "TrainError",
    "UnsupportedError",
    "VersionError",
]


class EagleError(Exception):
    """Root of all errors of eaglecpp; catch this to catch them all."""


class GgufError(EagleError):
    """A GGUF file cannot be read: not a GGUF, truncated, inconsistent, or with sizes no honest file has."""


class MismatchError(EagleError):
    """The drafter does not fit the target: other width, vocabulary, tokenizer or layer count."""


class UnsupportedError(EagleError):
    """Something eaglecpp or the installed llama.cpp cannot do: an architecture, a backend, an argument."""


class ContextFullError(EagleError, ValueError):
    """The prompt does not fit the context. Also a `ValueError`, which is what llama_cpp raises in this
    case.
    """


class DataError(EagleError):
    """Training data cannot be used: a line that is no record, features that are no numbers, a cache or a file
    of answers made with another target.
    """


class TrainError(EagleError):
    """A training cannot start, go on or end: no state to resume, a directory in use, a result that does not
    compute what was trained.
    """


class OutOfMemoryError(EagleError):
    """Weights, caches or compute buffers did not fit in the memory of a device."""


class QueueFullError(EagleError):
    """More requests are waiting for an `AsyncEngine` than it was told to keep."""


class EngineBusyError(EagleError):
    """The engine or session is in use by another thread, or a newer generation took the session over."""


class EngineBrokenError(EagleError):
    """llama.cpp failed an internal check; the process lives on but this engine must be closed and opened
    again.
    """


class GrammarError(EagleError):
    """A GBNF grammar or JSON schema does not parse, or rules out every continuation."""


class ModelNotFoundError(EagleError):
    """A model reference names no file."""


class VersionError(EagleError):
    """The installed llama-cpp-python, or the library it loads, is not the one the extension was built for."""
