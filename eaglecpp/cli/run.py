# SPDX-License-Identifier: MIT
"""`eaglecpp run`, named as in Ollama: answers a prompt; without a prompt, on a terminal, it starts a chat.

Flags have Ollama's names if Ollama has the same flag. Piped input is put before the prompt. With a prompt,
with piped input, or if the output is not a terminal, the command gives a single answer, and only this answer
goes to stdout. The package `chat` implements answers and chats.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from eaglecpp.chat.images import is_image_name
from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.commands import run_chat, with_pictures
from eaglecpp.cli.chat.input import read_picture
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.chat.settings import ChatSettings
from eaglecpp.cli.command import CliCommand, command, complete_model
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
from eaglecpp.conversations.saved import ChatFolder, SavedChat
from eaglecpp.conversations.served import ServerAnswers
from eaglecpp.data_dir import data_dir
from eaglecpp.errors import InvalidValueError
from eaglecpp.files import exists
from eaglecpp.options import declare
from eaglecpp.references import hub_text
from eaglecpp.server.announced import find_server


class _RunCommand(CliCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line so that --think takes a value only after `=`, as in Ollama. In `--think
        hello` the prompt is hello.
        """
        end = args.index("--") if "--" in args else len(args)
        bare = ["--think=true" if arg == "--think" else arg for arg in args[:end]]
        return super().parse_args(ctx, [*bare, *args[end:]])


def _template(text: str) -> str:
    if "{" not in text and text not in _TEMPLATES:
        raise InvalidValueError(
            f"{text!r}: expected a template in Jinja or Go, or one of {', '.join(_TEMPLATES)}; pass another "
            "built-in template of llama.cpp as a file (--chat-template-file)"
        )
    return text


_TEMPLATES = ("chatml", "raw", "gguf")


@dataclass(frozen=True)
class RunOptions(Served, Answering):
    """Options that only `run` has, in addition to the common options."""

    prompt_named: str | None = declare(
        None, "The prompt, instead of PROMPT.", flags="-p --prompt", metavar="TEXT"
    )
    resume: bool = declare(
        False, "Continue the last chat, or the chat whose model or ID is given as MODEL.", flags="--continue"
    )
    system: str | None = declare(None, "System prompt.", flags="--system -sys --system-prompt")
    image: tuple[str, ...] = declare((), "Pictures for a model that reads images.", metavar="FILE,...")
    chat_template: str | None = declare(
        None,
        "Chat template instead of the model's: a Jinja or Go text, chatml, gguf, or raw (the bare prompt).",
        type=Parsed("template", _template),
        metavar="TEXT",
    )
    chat_template_file: str | None = declare(
        None, "File with a chat template.", type=FILE_TEXT, metavar="FILE"
    )
    format: dict[str, Any] | None = declare(
        None, "Form of the answer: json, a JSON schema, or a schema file.", type=FORMAT, metavar="F"
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
        "Show the opened files and the origin of each option before the answer, and Ollama's durations and "
        "rates after it.",
        flags="-v --verbose",
    )
    quiet: bool = declare(False, "Show no statistics after the answer.", flags="-q --quiet")
    nowordwrap: bool = declare(False, "Do not break lines between words.")
    insecure: bool = declare(False, "Allow downloads over http and from servers with invalid certificates.")
    keep_alive_s: float | None = declare(
        None,
        "Time that a running server keeps the model in memory after the answer; negative = forever.",
        kind="seconds",
        flags="--keepalive --keep-alive",
    )
    no_server: bool = declare(False, "Open the model in this process even if a server is running.")

    def template(self) -> str:
        """Returns the chat template that the options name, or "". Raises click.UsageError if two options name
        a template.
        """
        if self.chat_template is not None and self.chat_template_file is not None:
            raise click.UsageError("--chat-template and --chat-template-file contradict each other")
        return self.chat_template or self.chat_template_file or ""


@command(
    ("eaglecpp run smollm2", "chat; /? lists the commands"),
    ('eaglecpp run llama3.1:8b "Why is the sky blue?"', "one answer"),
    ('eaglecpp run smollm2 "Summarise this" < notes.txt', "about a file"),
    ("eaglecpp run model.gguf --draft drafter.gguf", "your own files"),
    ('eaglecpp run gemma3 photo.jpg "What is this?"', "a picture, with a model that reads images"),
    ("eaglecpp run --continue", "continue the last chat"),
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
    answer that and exit. If `eaglecpp serve` runs on this machine, it gives the answers.
    """
    folder = ChatFolder(data_dir() / "chats")
    if model_named is not None:  # with -m or -hf, the first word belongs to the prompt
        model, prompt = model_named, (*(() if model is None else (model,)), *prompt)
    # The name of a model contains no blank.
    elif model is not None and " " in model.strip() and not exists(Path(model)):
        if not asked.resume:
            raise click.UsageError(f"no model is named; write: eaglecpp run smollm2 {shlex.quote(model)}")
        prompt = (model, *prompt)
        model = None
    chosen = folder.find(model) if asked.resume and model else None
    model = _checked_model(chosen.model if chosen else model, on_hub=on_hub, is_needed=not asked.resume)
    if asked.prompt_named is not None:
        prompt = (*prompt, asked.prompt_named)
    settings = ChatSettings(
        given(options),
        asked.strategy,
        think={None: None, "true": True, "false": False}.get(asked.think, asked.think),
        format=asked.form(**asked.format or {}),
        figures="all" if asked.verbose else "none" if asked.quiet else "line",
        history=not os.environ.get("EAGLECPP_NOHISTORY"),
    )
    pictures, prompt = _pictures(prompt, asked.image)
    text = _question(prompt)
    if asked.as_json and text is None:
        raise click.UsageError("--json needs a single answer: give a prompt")
    chat = _found(asked, model, settings, folder, chosen)
    if text is not None and not asked.resume:
        chat.folder = None
    with contextlib.ExitStack() as stack:
        stack.callback(chat.close)
        if chat.server is None:
            chat.engine  # noqa: B018 - opens it
        if text is None:
            from eaglecpp.cli.chat.keyboard import open_keyboard

            keyboard = open_keyboard(data_dir() / "history", lambda: chat.settings.history)
            chat.ask = stack.enter_context(keyboard)
        chat.images += pictures
        if asked.verbose and chat.server is not None:
            note(f"server:     {chat.server.address} (--no-server opens the model in this process)")
        elif asked.verbose:
            note(plan_text(chat.engine.plan, chat.engine.chat_template))
        if text is None:
            run_chat(chat)
        else:
            _answer(chat, text, prompt, asked)


def _checked_model(model: str | None, *, on_hub: bool, is_needed: bool) -> str | None:
    """Parses MODEL into a reference. Raises click.UsageError if MODEL is missing or is a picture."""
    if model is None and not is_needed:
        return None
    model = only_model(model, None)
    model = hub_text(model) if on_hub else model
    if is_image_name(model) and exists(Path(model)):
        raise click.UsageError(f"{model} is a picture; name a model: eaglecpp run MODEL {shlex.quote(model)}")
    return model


def _found(
    asked: RunOptions, model: str | None, settings: ChatSettings, folder: ChatFolder, chosen: SavedChat | None
) -> Chat:
    """Returns a new chat, or the chat to continue, with the model and the server that has it. chosen: a chat
    that the user chose by its id
    """
    may_draft = asked.strategy is None or asked.strategy.kind != "off"
    find = partial(look_up, wants_draft=may_draft, insecure=asked.insecure)
    answers_at = partial(ServerAnswers, keep_alive_s=asked.keep_alive_s, api_key=asked.key)
    is_own = bool(asked.as_json or asked.draft or asked.template() or "grammar" in settings.format)
    server, elsewhere, host = None, None, None if asked.no_server else asked.host
    source = None if model is None or host else find(model, asked.draft)
    saved = chosen
    if saved is None and asked.resume:
        saved = _last_chat(folder, model if source is None else source.reference)
    if host is not None:
        if is_own:
            options_here = "--json, --draft, --chat-template and --grammar need --no-server"
            raise click.UsageError(f"{options_here}; otherwise the server {host} answers")
        server = answers_at(host, model or str(saved and saved.model))
        source, drafts, sees = server.found()
        elsewhere = host, drafts, sees
    else:
        if saved is not None and (source is None or source.draft is None):
            source = find(model or saved.model, asked.draft or saved.draft)
        assert source is not None
        source = replace(source, requested_template=asked.template())
    screen = Screen(wrap=not asked.nowordwrap, hide_thinking=asked.hidethinking, echo=not asked.as_json)
    chat = Chat(
        source, settings, screen, folder=folder, saved=saved, system=asked.system, server=server,
        elsewhere=elsewhere,
    )  # fmt: skip
    needs_draft(chat.settings.strategy, chat.can_draft)
    is_own = is_own or asked.no_server or chat.says_how_to_open
    if server is None and not is_own and (address := find_server()):
        chat.server = chat.session.answers = answers_at(address, source.label)
    if asked.keep_alive_s is not None and chat.server is None:
        note("note: --keepalive has no effect, because no server (eaglecpp serve) answers")
    return chat


def _answer(chat: Chat, text: str, words: tuple[str, ...], asked: RunOptions) -> None:
    """Answers one question. words: the words of the question on the command line."""
    chat.say_notices()
    typed = " ".join(words)
    if typed and text.endswith(typed):  # Only the typed text may name pictures. The piped input may not.
        text = text.removesuffix(typed) + with_pictures(chat, typed, words)
    # The verdict is not printed after a single answer, because scripts would get it with every answer. A chat
    # prints the verdict after its first answer.
    if not asked.verbose:
        chat.judged.add(chat.source.label)
    completion = chat.reply(partial(chat.session.stream, text), show_stats=not asked.as_json)
    if completion is not None and asked.as_json:
        message = completion.message
        answer = dict[str, Any](text=message.content, thinking=message.thinking, tokens=completion.tokens)
        answer |= {"finish_reason": completion.finish_reason, "timings": completion.timings.as_dict()}
        write_json(answer)
    if completion is None or completion.finish_reason == "cancelled":
        raise click.exceptions.Exit(130)


def _last_chat(folder: ChatFolder, reference: str | None) -> SavedChat:
    saved = folder.latest(reference)
    if saved is None:
        which = "" if reference is None else f" with {reference}"
        raise click.ClickException(
            f"there is no saved chat{which} to continue; to start a chat, remove --continue"
        )
    return saved


def _pictures(words: tuple[str, ...], named: tuple[str, ...]) -> tuple[list[bytes], tuple[str, ...]]:
    """Returns the images from --image and from the words of a prompt, and the words that remain."""
    typed = [word for word in words if is_image_name(word) and exists(Path(word)) and Path(word).is_file()]
    paths = [*(path for text in named for path in text.split(",")), *typed]
    return [*map(read_picture, paths)], tuple(word for word in words if word not in typed)


def _question(words: tuple[str, ...]) -> str | None:
    """Returns the question, which consists of standard input (unless it is a terminal) and the prompt.
    Returns None if a chat should start.
    """
    parts = [argument_bytes(" ".join(words))] if words else []
    if not sys.stdin.isatty():
        with patience("reading standard input to its end (</dev/null to skip this) ..."):
            parts.insert(0, read_input("-").rstrip(b"\n"))
    elif not words and sys.stdout.isatty():
        return None
    question = b"\n\n".join(part for part in parts if part)
    if not question:
        raise click.UsageError(
            "no prompt: give it as an argument or on standard input, or chat on a terminal"
        )
    text = question.decode("utf-8", "replace")
    if text.encode("utf-8") != question:
        note("note: the prompt is not valid UTF-8; invalid bytes were replaced by \ufffd")
    return text
