# SPDX-License-Identifier: MIT
"""Measuring: strategies against plain decoding on a few prompts (`strategies`); `verdict` says in plain words
what drafting and the kernels give.
"""
