# SPDX-License-Identifier: MIT
"""Measures strategies against target-only decoding on a few prompts (`strategies`) and reports the result
in words (`verdict`).
"""
