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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.command import Command, command, complete_model
from eaglecpp.cli.open_engine import look_up, needs_draft, plan_text, run_defaults
from eaglecpp.cli.options import (
    AUTOMATIC_CONTEXT,
    FILE_TEXT,
    FORMAT,
    Answering,
    Parsed,
    Served,
    argument_bytes,
    engine_options,
    given,
    hub_option,
    model_option,
    only_model,
    options_of,
    read_input,
    spec_type_option,
)
from eaglecpp.cli.terminal import note, patience, write_json
from eaglecpp.errors import InvalidValueError
from eaglecpp.files import exists
from eaglecpp.options import declare
from eaglecpp.references.reference import hub_text

if TYPE_CHECKING:
    from eaglecpp.cli.chat.input import Ask
    from eaglecpp.conversations.saved import ChatFolder, SavedChat


class _RunCommand(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in Ollama, --think takes a value only after `=`: in `--think hello` the prompt is hello."""
        end = args.index("--") if "--" in args else len(args)
        bare = ["--think=true" if arg == "--think" else arg for arg in args[:end]]
        return super().parse_args(ctx, [*bare, *args[end:]])


def _template(text: str) -> str:
    if "{" not in text and text not in _TEMPLATES:
        raise InvalidValueError(
            f"{text!r}: expected a template in Jinja or Go, or one of {', '.join(_TEMPLATES)}; llama.cpp's "
            "other names are not built in here: give that template as a file (--chat-template-file)"
        )
    return text


_TEMPLATES = ("chatml", "raw", "gguf")


@dataclass(frozen=True)
class RunOptions(Served, Answering):
    """Options of `run` alone."""

    prompt_named: str | None = declare(
        None, "The prompt, in place of PROMPT.", flags="-p --prompt", metavar="TEXT"
    )
    resume: bool = declare(
        False, "Continue the last chat (with MODEL, if given; its ID chooses a chat).", flags="--continue"
    )
    system: str | None = declare(None, "System prompt.", flags="--system -sys --system-prompt")
    image: tuple[str, ...] = declare((), "Pictures for the model, if it reads some.", metavar="FILE,...")
    chat_template: str | None = declare(
        None,
        "Chat template in place of the model's: in Jinja or Go; or chatml, raw (the bare prompt), gguf.",
        type=Parsed("template", _template),
        metavar="TEXT",
    )
    chat_template_file: str | None = declare(
        None, "File with a chat template.", type=FILE_TEXT, metavar="FILE"
    )
    format: dict[str, Any] | None = declare(
        None, "Form of the answer: json, a JSON schema, or a file with one.", type=FORMAT, metavar="F"
    )
    think: str | None = declare(
        None, "Let the model think: true, false, or a level such as high.", metavar="[=LEVEL]"
    )
    hidethinking: bool = declare(False, "Let the model think, but do not show it.")
    as_json: bool = declare(
        False, "Print {text, thinking, tokens, finish_reason, timings} at the end.", flags="--json"
    )
    verbose: bool = declare(
        False,
        "Show durations and rates after the answer, as Ollama does, and before it what is opened and where "
        "each option comes from.",
        flags="-v --verbose",
    )
    quiet: bool = declare(False, "Show no statistics after the answer.", flags="-q --quiet")
    nowordwrap: bool = declare(False, "Do not break lines between words.")
    insecure: bool = declare(False, "Allow downloads over http and from servers with invalid certificates.")
    keep_alive_s: float | None = declare(
        None,
        "How long a running server keeps the model in memory after the answer; negative = forever.",
        kind="seconds",
        flags="--keepalive --keep-alive",
    )
    no_server: bool = declare(False, "Open the model in this process although a server is running.")

    def template(self) -> str:
        """The chat template that was asked for, "" for none. Raises click.UsageError for two."""
        if self.chat_template is not None and self.chat_template_file is not None:
            raise click.UsageError("--chat-template and --chat-template-file contradict each other")
        return self.chat_template or self.chat_template_file or ""


@command(
    ("eaglecpp run smollm2", "chat; /? lists what can be typed there"),
    ('eaglecpp run llama3.1:8b "Why is the sky blue?"', "one answer"),
    ('eaglecpp run smollm2 "Summarise this" < notes.txt', "about a file"),
    ("eaglecpp run model.gguf --draft drafter.gguf", "files of your own"),
    ('eaglecpp run gemma3 photo.jpg "What is this?"', "about a picture, by a model that reads some"),
    ("eaglecpp run --continue", "go on with the last chat"),
    cls=_RunCommand,
    usual="draft resume system image format think verbose max_tokens temperature n_ctx",
)
@click.argument("model", required=False, shell_complete=complete_model)
@click.argument("prompt", nargs=-1)
@model_option
@hub_option
@options_of(asked=RunOptions)
@spec_type_option
@engine_options(defaults=run_defaults(), helps=AUTOMATIC_CONTEXT)
def run(
    model: str | None,
    prompt: tuple[str, ...],
    model_named: str | None,
    on_hub: bool,
    asked: RunOptions,
    **options: Any,
) -> None:
    """Chat with MODEL: a GGUF file, a stored name, or hf.co/user/repo[:quant]. With PROMPT or piped input,
    answer that and exit. Answers come from `eaglecpp serve` where that runs on this machine.
    """
    from eaglecpp.chat.images import is_image_name
    from eaglecpp.cli.chat.chat import Chat, ChatSettings
    from eaglecpp.cli.chat.commands import run_chat, with_pictures
    from eaglecpp.cli.chat.model import RunModel, ServedModel
    from eaglecpp.cli.chat.screen import Screen
    from eaglecpp.conversations.saved import ChatFolder
    from eaglecpp.conversations.served import ServerAnswers
    from eaglecpp.data_dir import data_dir
    from eaglecpp.server.announced import find_server

    if model_named is not None:  # then the first word is one of the prompt's
        model, prompt = model_named, (*(() if model is None else (model,)), *prompt)
    elif model is not None and " " in model.strip() and not exists(Path(model)):  # no name has a blank
        if not asked.resume:
            raise click.UsageError(f"which model? eaglecpp run smollm2 {shlex.quote(model)}")
        prompt = (model, *prompt)
        model = None
    folder = ChatFolder(data_dir() / "chats")
    chosen = folder.find(model) if asked.resume and model else None
    model = chosen.model if chosen else model
    if model is not None or not asked.resume:
        model = only_model(model, None)
        model = hub_text(model) if on_hub else model
    if model is not None and is_image_name(model) and exists(Path(model)):
        raise click.UsageError(f"{model} is a picture: which model? eaglecpp run MODEL {shlex.quote(model)}")
    if asked.prompt_named is not None:
        prompt = (*prompt, asked.prompt_named)
    settings = ChatSettings(
        think={None: None, "true": True, "false": False}.get(asked.think, asked.think),
        format=asked.form(**asked.format or {}),
        figures="all" if asked.verbose else "none" if asked.quiet else "line",
        history=not os.environ.get("EAGLECPP_NOHISTORY"),
    )
    pictures, prompt = _pictures(prompt, asked.image)
    question = _question(prompt)
    text = None if question is None else question.decode("utf-8", "replace")
    if text is not None and text.encode("utf-8") != question:
        note("note: the prompt is not valid UTF-8; invalid bytes were replaced by \ufffd")
    if asked.as_json and text is None:
        raise click.UsageError("--json is for one answer: give a prompt")
    set_here = given(options)
    find = partial(
        look_up, wants_draft=asked.strategy is None or asked.strategy.kind != "off", insecure=asked.insecure
    )
    template, api_key = asked.template(), asked.key
    is_own = bool(asked.as_json or asked.draft or template or "grammar" in settings.format)
    server, host = None, None if asked.no_server else asked.host
    source = None if model is None or host else find(model, asked.draft)
    reference = model if source is None else source.model.reference
    saved = chosen or (_last_chat(folder, reference) if asked.resume else None)
    if host is not None:
        if is_own:
            not_there = "--json, --draft, --chat-template and --grammar need --no-server"
            raise click.UsageError(f"{not_there}: {host} is to answer")
        server = ServerAnswers(host, model or str(saved and saved.model), asked.keep_alive_s, api_key=api_key)
        model_here: RunModel = ServedModel(server, set_here, asked.strategy)
    else:
        if saved is not None and (source is None or source.draft is None):
            source = find(model or saved.model, asked.draft or saved.draft)
        assert source is not None
        source = replace(source, model=replace(source.model, asked_template=template))
        model_here = RunModel(source, set_here, asked.strategy)
    if saved is not None:
        model_here.go_on(saved.parameters, saved.strategy)
    needs_draft(model_here.asked, model_here.can_draft)
    is_own = is_own or asked.no_server or model_here.says_how_to_open
    if server is None and not is_own and (address := find_server()):
        server = ServerAnswers(str(address), "", asked.keep_alive_s, api_key=api_key)
    if asked.keep_alive_s is not None and server is None:
        note("note: --keepalive is for a running server (eaglecpp serve), and none makes the answers")
    with contextlib.ExitStack() as stack:
        if server is None:
            model_here.engine  # noqa: B018 - opens it
        ask: Ask = _no_one_to_ask
        if text is None:
            from eaglecpp.cli.chat.keyboard import open_keyboard

            ask = stack.enter_context(open_keyboard(data_dir() / "history", lambda: settings.history))
        screen = Screen(wrap=not asked.nowordwrap, hide_thinking=asked.hidethinking, echo=not asked.as_json)
        kept_in = folder if text is None or asked.resume else None
        chat = Chat(model_here, ask, screen, settings, kept_in, saved, asked.system, server)
        stack.callback(model_here.close)
        chat.images += pictures
        if asked.verbose and server is not None:
            note(f"server:     {server.address} (--no-server opens the model in this process)")
        elif asked.verbose:
            note(plan_text(model_here.engine))
        if text is None:
            run_chat(chat)
            return
        chat.say_notices()
        typed = " ".join(prompt)
        if typed and text.endswith(typed):  # not what was piped in
            text = text.removesuffix(typed) + with_pictures(chat, typed, prompt)
        # a script that asks a hundred times is told by --verbose, a chat by its first answer
        if not asked.verbose:
            chat.judged.add(model_here.source.name)
        made = chat.reply(partial(chat.session.stream, text), show_stats=not asked.as_json)
    if made is not None and asked.as_json:
        said = {"text": made.message.content, "thinking": made.message.thinking, "tokens": made.tokens}
        write_json(said | {"finish_reason": made.finish_reason, "timings": made.timings.as_dict()})
    if made is None or made.finish_reason == "cancelled":
        raise click.exceptions.Exit(130)


def _last_chat(folder: ChatFolder, reference: str | None) -> SavedChat:
    saved = folder.latest(reference)
    if saved is None:
        which = "" if reference is None else f" with {reference}"
        raise click.ClickException(f"there is no saved chat{which} to continue; start one without --continue")
    return saved


def _no_one_to_ask(prompt: str, default: str) -> str:
    raise EOFError


def _pictures(words: tuple[str, ...], named: tuple[str, ...]) -> tuple[list[bytes], tuple[str, ...]]:
    """The images that --image names and those among the words of a prompt, and the other words."""
    from eaglecpp.chat.images import is_image_name
    from eaglecpp.cli.chat.input import read_picture

    found = [word for word in words if is_image_name(word) and exists(Path(word)) and Path(word).is_file()]
    paths = [*(path for text in named for path in text.split(",")), *found]
    return [*map(read_picture, paths)], tuple(word for word in words if word not in found)


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
