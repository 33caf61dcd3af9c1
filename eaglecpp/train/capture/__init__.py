# SPDX-License-Identifier: MIT
"""The target asked: its own answers and conversations, the features of its layers, and the cache of them."""
