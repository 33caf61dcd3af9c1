# SPDX-License-Identifier: MIT
"""Captures data from the target: answers, conversations, hidden states, and a cache of them."""
