# SPDX-License-Identifier: MIT
"""What tests share. Imported as `helpers.*`: pytest puts `tests/` on the path (`pythonpath` in pyproject.toml)."""
