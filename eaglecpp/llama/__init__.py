# SPDX-License-Identifier: MIT
"""`Llama`: eaglecpp in the place of `llama_cpp.Llama`."""

from __future__ import annotations

from eaglecpp.llama.llama import Llama

__all__ = ["Llama"]
