# SPDX-License-Identifier: MIT
"""Entry point of `python -m eaglecpp` and of the `eaglecpp` command. Imports nothing until Ctrl+C can be
handled.
"""

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command line of this process and returns the exit code. A later Ctrl+C cannot change this exit
    code.
    """
    try:
        import atexit
        import gc
        import signal

        # Imports leave no reference cycles, and looking for cycles took 5 % of the time of `run`.
        gc.set_threshold(50_000)
        # Python calls exit handlers in reverse order, so this handler runs last.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        from eaglecpp.cli import main as run

        code = run()
    except KeyboardInterrupt:
        code = 130
    # After a KeyboardInterrupt in executed text, CPython sets a flag and later ends itself by SIGINT.
    # Executing an empty text resets this flag.
    exec("")
    return code


if __name__ == "__main__":
    sys.exit(main())
