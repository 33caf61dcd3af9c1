# SPDX-License-Identifier: MIT
"""`eaglecpp run`: Ollama's verb. A prompt gives one answer; without one, on a terminal, there is a chat.

Flags are Ollama's where Ollama has them. Piped input is put before the prompt. With a prompt, with piped
input, or if the output is not a terminal, there is a single answer, and only that goes to stdout. `chat` has
the chat, which also gives a single answer.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.command import Command, command, complete_model, json_option, option
from eaglecpp.cli.open_engine import look_up, needs_draft, plan_text, run_defaults, strategy_of
from eaglecpp.cli.options import (
    AUTOMATIC_CONTEXT,
    FORMAT,
    SECONDS,
    argument_bytes,
    engine_options,
    given,
    hub_option,
    model_option,
    only_model,
    read_input,
    strategy_options,
)
from eaglecpp.cli.terminal import note, patience, write_json
from eaglecpp.files import exists
from eaglecpp.options import Strategy
from eaglecpp.references.reference import hub_text

if TYPE_CHECKING:
    from eaglecpp.cli.chat.input import Ask
    from eaglecpp.conversations.saved import ChatFolder, SavedChat
    from eaglecpp.opening.find import Found


class _RunCommand(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in Ollama, --think takes a value only after `=`: in `--think hello` the prompt is hello."""
        end = args.index("--") if "--" in args else len(args)
        bare = ["--think=true" if arg == "--think" else arg for arg in args[:end]]
        return super().parse_args(ctx, [*bare, *args[end:]])


@command(
    ("eaglecpp run smollm2", "chat; /? lists what can be typed there"),
    ('eaglecpp run llama3.1:8b "Why is the sky blue?"', "one answer"),
    ('eaglecpp run smollm2 "Summarise this" < notes.txt', "about a file"),
    ("eaglecpp run model.gguf --draft drafter.gguf", "files of your own"),
    ('eaglecpp run gemma3 photo.jpg "What is this?"', "about a picture, by a model that reads some"),
    ("eaglecpp run --continue", "go on with the last chat"),
    cls=_RunCommand,
    usual="draft no_draft resume system form think verbose max_tokens temperature n_ctx",
)
@click.argument("model", required=False, shell_complete=complete_model)
@click.argument("prompt", nargs=-1)
@model_option
@option("-p", "--prompt", "prompt_named", metavar="TEXT", help="The prompt, in place of PROMPT.")
@hub_option
@strategy_options
@option(
    "--continue",
    "resume",
    is_flag=True,
    help="Continue the last chat (with MODEL, if given; its ID chooses a chat).",
)
@option("--system", "-sys", "--system-prompt", "system", help="System prompt.")
@option(
    "--format",
    "form",
    type=FORMAT,
    metavar="F",
    help="Form of the answer: json, a JSON schema, or a file with one.",
)
@option("--think", metavar="[=LEVEL]", help="Let the model think: true, false, or a level such as high.")
@option("--hidethinking", is_flag=True, help="Let the model think, but do not show it.")
@json_option("{text, thinking, tokens, finish_reason, timings} at the end")
@option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show durations and rates after the answer, as Ollama does, and before it what is opened and where "
    "each option comes from.",
)
@option("-q", "--quiet", is_flag=True, help="Show no statistics after the answer.")
@option("--nowordwrap", is_flag=True, help="Do not break lines between words.")
@option(
    "--insecure", is_flag=True, help="Allow downloads over http and from servers with invalid certificates."
)
@option(
    "--keepalive",
    type=SECONDS,
    help="How long a running server keeps the model in memory after the answer; negative = forever.",
)
@option("--no-server", is_flag=True, help="Open the model in this process although a server is running.")
@engine_options(defaults=run_defaults(), helps=AUTOMATIC_CONTEXT)
def run(
    model: str | None,
    prompt: tuple[str, ...],
    model_named: str | None,
    prompt_named: str | None,
    on_hub: bool,
    draft: str | None,
    strategy: Strategy | None,
    no_draft: bool,
    resume: bool,
    system: str | None,
    form: dict[str, Any] | None,
    think: str | None,
    hidethinking: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    nowordwrap: bool,
    insecure: bool,
    keepalive: float | None,
    no_server: bool,
    **options: Any,
) -> None:
    """Chat with MODEL: a GGUF file, a stored name, or hf.co/user/repo[:quant]. With PROMPT or piped input,
    answer that and exit. Answers come from `eaglecpp serve` where that runs on this machine.
    """
    from eaglecpp.cli.chat.chat import Chat, Settings
    from eaglecpp.cli.chat.commands import run_chat
    from eaglecpp.cli.chat.model import RunModel
    from eaglecpp.cli.chat.screen import Screen
    from eaglecpp.conversations.saved import ChatFolder
    from eaglecpp.conversations.served import ServerAnswers
    from eaglecpp.data_dir import data_dir
    from eaglecpp.server.announced import find_server

    if model_named is not None:  # then the first word is one of the prompt's
        model, prompt = model_named, (*(() if model is None else (model,)), *prompt)
    elif model is not None and " " in model.strip() and not exists(Path(model)):  # no name has a blank
        if not resume:
            raise click.UsageError(f"which model? eaglecpp run smollm2 {shlex.quote(model)}")
        prompt = (model, *prompt)
        model = None
    folder = ChatFolder(data_dir() / "chats")
    chosen = folder.find(model) if resume and model else None
    model = chosen.model if chosen else model
    if model is not None or not resume:
        model = only_model(model, None)
        model = hub_text(model) if on_hub else model
    if prompt_named is not None:
        prompt = (*prompt, prompt_named)
    wanted = strategy_of(strategy, no_draft)
    settings = Settings(
        think={None: None, "true": True, "false": False}.get(think, think),
        format=form or {},
        figures="all" if verbose else "none" if quiet else "line",
        history=not os.environ.get("EAGLECPP_NOHISTORY"),
    )
    pictures, prompt = _pictures(prompt)
    question = _question(prompt)
    text = None if question is None else question.decode("utf-8", "replace")
    if text is not None and text.encode("utf-8") != question:
        note("note: the prompt is not valid UTF-8; invalid bytes were replaced by \ufffd")
    if as_json and text is None:
        raise click.UsageError("--json is for one answer: give a prompt")
    set_here = given(options)
    find = partial(look_up, wants_draft=wanted is None or wanted.kind != "off", insecure=insecure)
    source = None if model is None else find(model, draft)
    saved = chosen or (_last_chat(folder, source) if resume else None)
    if saved is not None and (source is None or source.draft is None):
        source = find(model or saved.model, draft or saved.draft)
    assert source is not None
    model_here = RunModel(source, set_here, wanted)
    if saved is not None:
        model_here.go_on(saved.parameters, saved.strategy)
    needs_draft(model_here.asked, model_here.plan.can_draft)
    server = None
    if not (no_server or as_json or draft or model_here.says_how_to_open) and (address := find_server()):
        api_key = os.environ.get("EAGLECPP_API_KEY", "")
        server = ServerAnswers(str(address), "", keepalive, api_key=api_key)
    if keepalive is not None and server is None:
        note("note: --keepalive is for a running server (eaglecpp serve), and none makes the answers")
    with contextlib.ExitStack() as stack:
        if server is None:
            model_here.engine  # noqa: B018 - opens it
        ask: Ask = _no_one_to_ask
        if text is None:
            from eaglecpp.cli.chat.keyboard import open_keyboard

            ask = stack.enter_context(open_keyboard(data_dir() / "history", lambda: settings.history))
        chat = Chat(
            model_here,
            ask,
            Screen(wrap=not nowordwrap, hide_thinking=hidethinking, echo=not as_json),
            settings,
            folder=folder if text is None or resume else None,
            saved=saved,
            system=system,
            server=server,
        )
        stack.callback(chat.close)
        chat.images += pictures
        if verbose and server is not None:
            note(f"server:     {server.address} (--no-server opens the model in this process)")
        elif verbose:
            note(plan_text(model_here.engine))
        if text is None:
            run_chat(chat)
            return
        chat.say_notices()
        if not verbose:  # a script that asks a hundred times is told by --verbose, a chat by its first answer
            chat.judged.add(model_here.source.name)
        made = chat.reply(partial(chat.session.stream, text), show_stats=not as_json)
    if made is not None and as_json:
        write_json(
            {
                "text": made.message.content,
                "thinking": made.message.thinking,
                "tokens": made.tokens,
                "finish_reason": made.finish_reason,
                "timings": made.timings.as_dict(),
            }
        )
    if made is None or made.finish_reason == "cancelled":
        raise click.exceptions.Exit(130)


def _last_chat(folder: ChatFolder, source: Found | None) -> SavedChat:
    saved = folder.latest(None if source is None else source.model.reference)
    if saved is None:
        which = "" if source is None else f" with {source.name}"
        raise click.ClickException(f"there is no saved chat{which} to continue; start one without --continue")
    return saved


def _no_one_to_ask(prompt: str, default: str) -> str:
    raise EOFError


def _pictures(words: tuple[str, ...]) -> tuple[list[bytes], tuple[str, ...]]:
    """The images among the words of a prompt, and the other words."""
    from eaglecpp.chat.images import checked_image, is_image_name

    files = [word for word in words if is_image_name(word) and exists(Path(word))]
    found = [word for word in files if Path(word).is_file()]
    return [checked_image(Path(word).read_bytes()) for word in found], tuple(
        w for w in words if w not in found
    )


def _question(words: tuple[str, ...]) -> bytes | None:
    """Standard input, unless it is a terminal, then a blank line and the prompt. None: chat."""
    parts = [argument_bytes(" ".join(words))] if words else []
    if not sys.stdin.isatty():
        with patience("reading standard input to its end (</dev/null to skip this) ..."):
            parts.insert(0, read_input("-").rstrip(b"\n"))
    elif not words and sys.stdout.isatty():
        return None
    question = b"\n\n".join(part for part in parts if part)
    if not question:
        raise click.UsageError(
            "no prompt: give one as an argument or on standard input, or chat on a terminal"
        )
    return question
