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

        gc.set_threshold(50_000)  # imports leave no cycles; looking for cycles took 5 % of `run`'s time
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # registered first, so it runs last
        from eaglecpp.cli import main as run

        code = run()
    except KeyboardInterrupt:
        code = 130
    exec("")  # resets a flag: after a KeyboardInterrupt in executed text, CPython ends itself by SIGINT
    return code


if __name__ == "__main__":
    sys.exit(main())
