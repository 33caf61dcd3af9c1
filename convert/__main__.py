# SPDX-License-Identifier: MIT
"""`python -m convert SRC --target T` in a bare checkout: the same command, without the compiled extension.

`python -m convert inspect FILE` inspects.
"""

from __future__ import annotations

import sys

import click

from .cli import convert, inspect, printable
from .errors import EagleError


def main() -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 wrong usage."""
    args = sys.argv[1:]
    command, args = (inspect, args[1:]) if args[:1] == ["inspect"] else (convert, args)
    try:
        command.main(args=args, prog_name="python -m convert", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except click.ClickException as error:
        _say(error.format_message())
        return error.exit_code
    except EagleError as error:
        _say(str(error))
        return 1
    return 0


def _say(text: str) -> None:
    """Errors quote names and values of the files they are about."""
    click.echo(f"error: {printable(text) if sys.stderr.isatty() else text}", err=True)


if __name__ == "__main__":
    sys.exit(main())
