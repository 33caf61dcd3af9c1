# SPDX-License-Identifier: MIT
"""`python -m eaglecpp`: the same as the `eaglecpp` command."""

from __future__ import annotations

import sys

from eaglecpp.cli import main

if __name__ == "__main__":
    sys.exit(main())
