# SPDX-License-Identifier: MIT
"""`Llama`: a drop-in replacement for `llama_cpp.Llama`."""

from __future__ import annotations

from eaglecpp.llama.llama import Llama

__all__ = ["Llama"]
