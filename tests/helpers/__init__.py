# SPDX-License-Identifier: MIT
"""Modules that all tests share. They are imported as `helpers.*`, because tests/conftest.py puts `tests/` on
the path.
"""
