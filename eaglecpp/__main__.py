# SPDX-License-Identifier: MIT
"""`python -m eaglecpp` and the `eaglecpp` command. Imports nothing until Ctrl+C can be handled."""

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command line of this process and returns the exit code."""
    try:
        from eaglecpp.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
