# SPDX-License-Identifier: MIT
"""The engine: a loaded target with its drafter (`engine`), conversations (`session`), and running generations
(`stream`). The package raises and logs, it never prints.
"""
