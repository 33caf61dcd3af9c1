# SPDX-License-Identifier: MIT
"""The `eaglecpp` command: a table of lazily loaded subcommands, and the code that they share.

Results go to stdout, everything else to stderr. Exit codes: 0 success, 1 error, 2 usage, 130 interrupted.
An error is one line; `--debug` adds the traceback. `eaglecpp --help` imports no subcommand, to stay fast.
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

# Each command by its name, with "module:command" and a one-line help. The commands are listed in the order in
# which a new user needs them.
COMMANDS = {
    "run": ("eaglecpp.cli.run:run", "Chat with a model, or ask it one question."),
    "pull": ("eaglecpp.cli.stored:pull", "Download a model, and its drafter, by name."),
    "list": ("eaglecpp.cli.stored:list_models", "List the models on this machine."),
    "show": ("eaglecpp.cli.show:show", "Show information about a model."),
    "drafters": ("eaglecpp.cli.drafters:drafters", "List known drafters."),
    "doctor": ("eaglecpp.cli.doctor:doctor", "Check this machine, and whether drafting pays for a model."),
    "serve": ("eaglecpp.cli.serve:serve", "Serve models through the APIs of Ollama, OpenAI and Anthropic."),
    "launch": (
        "eaglecpp.cli.launch:launch",
        "Run a coding agent (Claude Code, Codex, opencode) with a model.",
    ),
    "ps": ("eaglecpp.cli.ps:ps", "List the models that a server has loaded."),
    "stop": ("eaglecpp.cli.ps:stop", "Unload a model from a server's memory."),
    "generate": ("eaglecpp.cli.generate:generate", "Complete a prompt, without a chat template."),
    "bench": ("eaglecpp.cli.benchmark:bench", "Measure a model's speed, with and without drafting."),
    "create": ("eaglecpp.cli.stored:create", "Make a stored model from a Modelfile."),
    "cp": ("eaglecpp.cli.stored:cp", "Give a stored model a second name."),
    "rm": ("eaglecpp.cli.stored:rm", "Remove stored models."),
    "train": ("eaglecpp.cli.train:train", "Train a drafter for a target."),
    "learn": ("eaglecpp.cli.learn:learn", "Train a model's drafter on your conversations."),
    "convert": ("eaglecpp.cli.convert:convert", "Convert a checkpoint of an EAGLE or block drafter to GGUF."),
    "inspect": (
        "eaglecpp.cli.show:inspect",
        "Show the contents of a GGUF file, and what it is compatible with.",
    ),
}


class LazyGroup(click.Group):
    """A click group whose subcommands are listed in `COMMANDS` and imported at their first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # the name `list` is taken by a module of this package

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = "list" if cmd_name == "ls" else cmd_name
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Treats `eaglecpp help run` as `eaglecpp run --help`."""
        return super().parse_args(ctx, [*args[1:2], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if ctx.resilient_parsing or word.startswith("-") or self.get_command(ctx, word) is not None:
            return super().resolve_command(ctx, args)
        from eaglecpp.human import nearest

        near = nearest(word, COMMANDS, cutoff=0.7)
        meant = f"; did you mean `eaglecpp {near}`?" if near else ""
        raise click.UsageError(f"no such command: {word}{meant}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(None, "-v", "--version", package_name="eaglecpp", message="%(prog)s %(version)s")
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
        from eaglecpp.cli.greet import greeting
        from eaglecpp.cli.terminal import write

        write(greeting())
        ctx.exit()
    from eaglecpp.cli.terminal import LogFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("eaglecpp").setLevel((log_level or "warning").upper())
    logging.getLogger("eaglecpp.native").setLevel((log_level or "critical").upper())


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code. args: the words of the command line; None = the
    arguments of the process.
    """
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            # Files and pipes get UTF-8, as from llama.cpp and Ollama. Other encodings lack characters.
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")  # type: ignore[union-attr]
    try:
        code = group.main(args=args, prog_name="eaglecpp", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as error:  # click ends the program on a broken pipe, without a message
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:
        return _report(error, "--debug" in (sys.argv if args is None else args))
    return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Opens null streams in place of closed standard streams, so that no file or socket gets the descriptors
    of these streams.

    Output to a closed stream is lost, which is not an error.
    """
    # The operating system gives a newly opened stream the lowest free descriptor.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 - stays open
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _report(error: Exception, debug: bool) -> int:
    """Prints an error in one line, and returns the exit code."""
    from eaglecpp.cli.terminal import note

    # The traceback is cleaned, because it contains the error's message, which may quote an untrusted file.
    if debug:
        note("".join(traceback.format_exception(error)).rstrip("\n"))
    text, code = message(error)
    note(f"error: {text}")
    return code


def message(error: Exception) -> tuple[str, int]:
    """Returns an error's text in one line, and the exit code."""
    if isinstance(error, click.UsageError):
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        if isinstance(error, click.NoSuchOption):
            from eaglecpp.cli.options import OF_LLAMA_CPP

            if ours := OF_LLAMA_CPP.get(error.option_name):
                return f"no such option: {error.option_name} is llama.cpp's; {ours}{where}", 2
            return f"no such option: {error.option_name}{_meant(error)}{where}", 2
        text = " ".join(error.format_message().split())
        return text[:1].lower() + text[1:].removesuffix(".") + where, 2
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, OSError):
        text = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
        return " ".join(text.split("\n")), 1
    if isinstance(error, EagleError):
        from eaglecpp.cli.options import in_flags
        from eaglecpp.modelfile.syntax import ModelfileError

        # Errors of a Modelfile quote the Modelfile, so their option names stay unchanged.
        return str(error) if isinstance(error, ModelfileError) else in_flags(str(error)), 1
    return f"internal error: {error!r}; see `eaglecpp --debug ...`", 1


def _meant(error: click.NoSuchOption) -> str:
    """Returns a hint with the option that the user probably meant. Click's own suggestions differ too much
    from what the user typed.
    """
    from eaglecpp.human import nearest

    parameters = error.ctx.command.params if error.ctx else []
    flags = {flag.lstrip("-"): flag for one in parameters for flag in (*one.opts, *one.secondary_opts)}
    typed = error.option_name.lstrip("-")
    begun = [name for name in flags if len(typed) > 2 and name.startswith(typed)]
    near = begun[0] if len(begun) == 1 else nearest(typed, flags, cutoff=0.75)
    return f"; did you mean {flags[near]}?" if near else ""


def _reader_left() -> int:
    """Handles a closed output pipe: prints no error now or when Python flushes the streams at exit."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    return 1
