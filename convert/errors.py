# SPDX-License-Identifier: MIT
"""Exceptions of the converter: one root, one subclass per cause.

Every message is one line (lists of tensors may span several), says what was expected, what was found, where
(file, key or tensor) and what to do. The command line prints the message and nothing else. `convert` is a
leaf package, so it has its own root instead of `eaglecpp.errors.EagleError`.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ConvertError",
    "GgufError",
    "LayerIdError",
    "QuantTypeError",
    "SourceError",
    "TargetError",
    "TensorError",
    "TokenizerError",
    "UnsupportedError",
    "VerifyError",
    "VocabMapError",
    "WriteError",
]


class ConvertError(Exception):
    """Anything that stops a conversion or an inspection."""


class SourceError(ConvertError):
    """The source or the target cannot be found, reached or told apart."""


class CheckpointError(ConvertError):
    """A weight file or config.json is truncated, malformed or hostile."""


class UnsupportedError(ConvertError):
    """The checkpoint is of a kind that cannot be converted; the message names it and says why."""


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


class TokenizerError(TargetError):
    """The target's tokenizer files cannot be written into a GGUF."""


class QuantTypeError(ConvertError):
    """The requested tensor type does not exist, needs an importance matrix, or libggml is missing."""


class GgufError(ConvertError):
    """A GGUF file is truncated, malformed or hostile."""


class WriteError(ConvertError):
    """The output cannot be written."""


class VerifyError(ConvertError):
    """The written file, read back, is not what was meant to be written."""
