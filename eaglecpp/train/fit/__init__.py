# SPDX-License-Identifier: MIT
"""Trains the drafter on captured data in PyTorch, and writes and checks the GGUF."""
