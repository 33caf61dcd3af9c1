# SPDX-License-Identifier: MIT
"""The engine: a loaded target with its drafter (`engine`), conversations (`session`), running generations,
and what they need. Raises and logs, never prints.
"""
