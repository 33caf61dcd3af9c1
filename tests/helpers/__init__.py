# SPDX-License-Identifier: MIT
"""Modules that all tests share. Tests import them as `helpers.*`, because tests/conftest.py puts `tests/` on
the path.
"""
