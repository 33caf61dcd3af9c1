# SPDX-License-Identifier: MIT
"""What tests share. Imported as `helpers.*`: tests/conftest.py puts `tests/` on the path."""
