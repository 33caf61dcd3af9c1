# SPDX-License-Identifier: MIT
"""Captures data from the target (answers, conversations and hidden states) and caches hidden states on
disk.
"""
