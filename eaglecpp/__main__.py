# SPDX-License-Identifier: MIT
"""`python -m eaglecpp`, and the `eaglecpp` command. Imports nothing before Ctrl+C can be answered."""

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the process's command line; returns the exit code."""
    try:
        from eaglecpp.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
