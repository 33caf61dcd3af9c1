# SPDX-License-Identifier: MIT
"""Fits the drafter to what was captured, in PyTorch, up to the GGUF and the proof that it is right."""
