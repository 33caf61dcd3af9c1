# SPDX-License-Identifier: MIT
"""Exceptions of the converter, and the base class of all exceptions in eaglecpp. The base class is defined
here, because `convert` imports no other part of eaglecpp. `eaglecpp.errors` has all other exceptions.

Every message is one line (a list of tensors may span several lines). The message states what was expected,
what was found, where (file, key or tensor) and what to do. The command line prints only the message.
"""

from __future__ import annotations


class EagleError(Exception):
    """Base class of all errors in eaglecpp."""


class InvalidArgumentError(EagleError):
    """An unusable argument. Base class of `InvalidTypeError` and `InvalidValueError`. A server returns these
    errors to the client, and logs any other `TypeError` or `ValueError`.
    """


class InvalidTypeError(InvalidArgumentError, TypeError):
    """An argument of the wrong type."""


class InvalidValueError(InvalidArgumentError, ValueError):
    """An argument of the right type with an invalid value."""


class GgufError(EagleError):
    """A GGUF file cannot be read: not a GGUF, truncated, inconsistent, or with implausible sizes."""


class UnsupportedError(EagleError):
    """An operation that eaglecpp or the installed llama.cpp does not support: a kind of checkpoint, an
    architecture, a backend, an argument. The message names the operation and the reason.
    """


class ConvertError(EagleError):
    """An error of a conversion; base class of the more specific errors."""


class SourceError(ConvertError):
    """The source or the target cannot be found, reached or identified."""


class CheckpointError(ConvertError):
    """A weight file or config.json is truncated, malformed or hostile."""


class ConfigError(ConvertError):
    """A config value is missing, contradicts the tensors, or changes the arithmetic in an unsupported way."""


class TensorError(ConvertError):
    """Tensors are missing, unknown, mis-shaped or hold values that cannot be stored."""


class LayerIdError(ConvertError):
    """The ids of the extracted layers are ambiguous, contradictory or out of range."""


class VocabMapError(ConvertError):
    """d2t / t2d (a drafter's vocabulary maps) do not describe a map from the draft vocabulary into the target
    vocabulary.
    """


class TargetError(ConvertError):
    """The target is not usable or does not fit the drafter."""


class QuantTypeError(ConvertError):
    """The requested tensor type does not exist or needs an importance matrix, or libggml is missing."""


class WriteError(ConvertError):
    """The output cannot be written."""
