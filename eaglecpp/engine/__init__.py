# SPDX-License-Identifier: MIT
"""The engine: a loaded target with its drafter (`engine`), conversations (`session`), running generations and
their parts. The package raises and logs, it never prints.
"""
