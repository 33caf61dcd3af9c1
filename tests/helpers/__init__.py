# SPDX-License-Identifier: MIT
"""What tests share. Imported as `helpers.*`: `pythonpath` in pyproject.toml puts `tests/` on the path."""
