# SPDX-License-Identifier: MIT
"""Exceptions of the converter, and the root of all of eaglecpp's, which is here because `convert` imports
nothing else of ours; `eaglecpp.errors` has the others.

Every message is one line (lists of tensors may span several), says what was expected, what was found, where
(file, key or tensor) and what to do. The command line prints the message and nothing else.
"""

from __future__ import annotations


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


class UnsupportedError(EagleError):
    """Something eaglecpp or the installed llama.cpp cannot do: a kind of checkpoint, an architecture, a
    backend, an argument. The message names it and says why.
    """


class ConvertError(EagleError):
    """What else stops a conversion."""


class SourceError(ConvertError):
    """The source or the target cannot be found, reached or told apart."""


class CheckpointError(ConvertError):
    """A weight file or config.json is truncated, malformed or hostile."""


class ConfigError(ConvertError):
    """A config value is missing, contradicts the tensors, or changes the arithmetic in an unsupported way."""


class TensorError(ConvertError):
    """Tensors are missing, unknown, mis-shaped or hold values that cannot be stored."""


class LayerIdError(ConvertError):
    """The aux layer ids are ambiguous, contradictory or out of range."""


class VocabMapError(ConvertError):
    """d2t / t2d do not describe a map from the draft vocabulary into the target vocabulary."""


class TargetError(ConvertError):
    """The target is not usable or does not fit the drafter."""


class QuantTypeError(ConvertError):
    """The requested tensor type does not exist, needs an importance matrix, or libggml is missing."""


class WriteError(ConvertError):
    """The output cannot be written."""
