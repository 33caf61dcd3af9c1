# SPDX-License-Identifier: MIT
"""The plain twin of `eaglecpp.Llama`: a `llama_cpp.Llama` of the same file, opened when something needs it.

A logits processor has to see every logit, and frameworks reach into `_ctx`, `_model`, `scores`: drafting has
no place there. Such calls go to the twin, which decodes token by token, exactly as llama_cpp does; with
memory-mapped weights both share them. Code that never asks for any of this never pays for it.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

from llama_cpp.llama import Llama as TheirLlama  # whoever puts ours in its place writes to `llama_cpp.Llama`
from llama_cpp.llama_tokenizer import BaseLlamaTokenizer

__all__ = ["ARGUMENTS", "TWIN", "TheirLlama", "Tokenizer", "Twin"]

TWIN = (
    "_ctx",
    "_model",
    "_batch",
    "_candidates",
    "_sampler",
    "_mirostat_mu",
    "_lora_adapter",
    "_requires_eval",
    "_stack",
    "context_params",
    "model_params",
    "_is_recurrent",
    "_is_hybrid",
)
"""Attributes of llama_cpp's own; `Llama` has them from its twin."""

ARGUMENTS = {
    "_logits_all": "logits_all",
    "kv_overrides": "kv_overrides",
    "lora_base": "lora_base",
    "lora_path": "lora_path",
    "lora_scale": "lora_scale",
    "numa": "numa",
    "spm_infill": "spm_infill",
    "tensor_split": "tensor_split",
    "_c_tensor_split": "tensor_split",
}
"""Attributes of llama_cpp's that are arguments of its constructor, and their names there."""

_log = logging.getLogger("eaglecpp.llama")


class Twin:
    """Opens the model a second time, once. arguments: of `llama_cpp.Llama`."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        defaults = inspect.signature(TheirLlama.__init__).parameters
        self.arguments = {
            name: arguments.get(name, parameter.default)
            for name, parameter in defaults.items()
            if name not in ("self", "kwargs")
        }
        self._llama: Any = None

    @property
    def is_open(self) -> bool:
        """Whether anything needed it so far."""
        return self._llama is not None

    def get(self) -> Any:
        """The `llama_cpp.Llama`."""
        if self._llama is None:
            _log.info("%s: opened a second time, for plain decoding", self.arguments["model_path"])
            self._llama = TheirLlama(**self.arguments)
        return self._llama

    def close(self) -> None:
        """Frees it."""
        if self._llama is not None:
            self._llama.close()
            self._llama = None


class Tokenizer(BaseLlamaTokenizer):  # type: ignore[misc] # llama_cpp is untyped
    """What `Llama.tokenizer()` gives: the model's own, in llama_cpp's form."""

    def __init__(self, llama: Any) -> None:
        self._llama = llama

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        tokens: list[int] = self._llama.tokenize(text, add_bos, special)
        return tokens

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        text: bytes = self._llama.detokenize(tokens, prev_tokens, special)
        return text

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """As `tokenize`, from text."""
        return self.tokenize(text.encode("utf-8", errors="ignore"), add_bos, special)

    def decode(self, tokens: list[int]) -> str:
        """As `detokenize`, to text."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")
