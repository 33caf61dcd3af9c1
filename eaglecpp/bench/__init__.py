# SPDX-License-Identifier: MIT
"""Measures strategies against plain decoding on a few prompts (`strategies`) and reports the result in words
(`verdict`).
"""
