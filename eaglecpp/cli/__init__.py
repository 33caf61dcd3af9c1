# SPDX-License-Identifier: MIT
"""The `eaglecpp` command: a table of subcommands, loaded when used, and what all of them share.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
An error is one line; `--debug` adds the traceback. `eaglecpp --help` imports no subcommand, so it stays
quick.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click

from eaglecpp.errors import EagleError

__all__ = ["main"]

# name: ("module:command", one line for the list of commands)
COMMANDS = {
    "check": ("eaglecpp.cli.check:check", "Check a Modelfile, for eaglecpp or for Ollama."),
    "bench": ("eaglecpp.cli.bench.command:bench", "Measure this machine, with and without drafting."),
    "convert": ("eaglecpp.cli.convert:convert", "Convert an EAGLE drafter checkpoint to GGUF."),
    "cp": ("eaglecpp.cli.cp:cp", "Give a stored model a second name."),
    "create": ("eaglecpp.cli.create:create", "Make a stored model from a Modelfile."),
    "doctor": ("eaglecpp.cli.doctor:doctor", "Check this machine and the installation."),
    "drafters": ("eaglecpp.cli.drafters:drafters", "List known drafters."),
    "generate": ("eaglecpp.cli.generate:generate", "Complete a prompt, without a chat template."),
    "inspect": ("eaglecpp.convert.cli:inspect", "Show what is in a GGUF file and what it fits."),
    "list": ("eaglecpp.cli.list:list_models", "List the models on this machine."),
    "ps": ("eaglecpp.cli.ps:ps", "List the models that a server has loaded."),
    "pull": ("eaglecpp.cli.pull:pull", "Download a model, and its drafter, by name."),
    "rm": ("eaglecpp.cli.rm:rm", "Remove stored models."),
    "run": ("eaglecpp.cli.run:run", "Answer a prompt through the model's chat template."),
    "serve": ("eaglecpp.cli.serve:serve", "Serve models through the APIs of Ollama, OpenAI and Anthropic."),
    "show": ("eaglecpp.cli.show:show", "Show what a stored model is."),
    "train": ("eaglecpp.cli.train:train", "Train a drafter for a target."),
}


class LazyGroup(click.Group):
    """A group whose subcommands live in `COMMANDS` and are imported when first asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.command(
    cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="eaglecpp", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log to stderr at this level, including llama.cpp's own log.  [default: eaglecpp's warnings, "
    "nothing from llama.cpp]",
)
@click.pass_context
def group(ctx: click.Context, debug: bool, log_level: str | None) -> None:
    """EAGLE speculative decoding for GGUF models on llama.cpp: the same text, faster."""
    ctx.obj = {"debug": debug}
    if ctx.invoked_subcommand is None:
        from eaglecpp.cli.terminal import write

        write(ctx.get_help() + "\n")
        ctx.exit()
    from eaglecpp.cli.terminal import LogFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("eaglecpp").setLevel((log_level or "warning").upper())
    logging.getLogger("eaglecpp.native").setLevel((log_level or "critical").upper())
    if log_level is None:  # it warns about every retry before the error that says what is wrong
        logging.getLogger("urllib3").setLevel("ERROR")


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line with `args` (default: the process's) and returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = group.main(args=args, prog_name="eaglecpp", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as error:  # click's own answer to a broken pipe, already quiet
        return int(error.code or 0)
    except Exception as error:
        return _report(error, "--debug" in (sys.argv if args is None else args))
    return code if isinstance(code, int) else 0


def _report(error: Exception, debug: bool) -> int:
    """Prints in one line what went wrong; returns the exit code."""
    from eaglecpp.cli.terminal import note

    if debug:  # it quotes the error, which quotes the file
        note("".join(traceback.format_exception(error)).rstrip("\n"))
    text, code = _message(error)
    note(f"error: {text}")
    return code


def _message(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        return error.format_message() + where, 2
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, (EagleError, OSError)) or _is_convert_error(error):
        return " ".join(str(error).split("\n")) if isinstance(error, OSError) else str(error), 1
    if isinstance(error, (TypeError, ValueError)) and error.args and isinstance(error.args[0], str):
        return str(error), 1
    return f"internal error: {error!r}; `eaglecpp --debug ...` shows where", 1


def _is_convert_error(error: Exception) -> bool:
    """`eaglecpp.convert` has its own root class; if it is not loaded, the error cannot be one."""
    module = sys.modules.get("eaglecpp.convert.errors")
    return module is not None and isinstance(error, module.ConvertError)


def _reader_left() -> int:
    """Whoever read our output is gone: stay silent, also when Python flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    return 1
