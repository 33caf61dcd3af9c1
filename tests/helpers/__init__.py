# SPDX-License-Identifier: MIT
"""Shared by all tests. Imported as `helpers.*`, since tests/conftest.py puts `tests/` on the path."""
