# SPDX-License-Identifier: MIT
"""The drafter fitted to what was captured, in PyTorch, up to the GGUF and the proof of it."""
