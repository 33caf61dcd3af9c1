# SPDX-License-Identifier: MIT
"""The slash commands of the chat, in one table.

Names and replies are Ollama's if Ollama has the command (ollama/ollama: cmd/interactive.go). Only eaglecpp
has `/regen`, `/edit`, `/read`, `/chats` and `/strategy`. Commands raise errors, and `run_chat` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.chat.images import checked_image, is_image_name
from eaglecpp.cli import message
from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.input import PROMPT, is_command, named_pictures, read_block, read_picture, unquoted
from eaglecpp.cli.open_engine import look_up, plan_text
from eaglecpp.cli.options import MAX_INPUT, answer_format, decoded_text
from eaglecpp.cli.terminal import Watch, fitted, help_table, human_time, section, table
from eaglecpp.conversations.saved import ChatFolder
from eaglecpp.data_dir import data_dir, expanded
from eaglecpp.errors import EagleError, InvalidValueError
from eaglecpp.files import read_limited
from eaglecpp.human import human_bytes, nearest
from eaglecpp.modelfile import Command, Modelfile, ModelName
from eaglecpp.modelfile.parameters import DEPRECATED, PARAMETERS, parse_value
from eaglecpp.opening.find import template_of
from eaglecpp.options import Strategy
from eaglecpp.store import Stores
from eaglecpp.store.describe import for_both, parameter_text

if TYPE_CHECKING:
    from eaglecpp.store.facts import Facts

Handler = Callable[[Chat, str], Any]


@dataclass(frozen=True)
class SlashCommand:
    """A slash command.

    run:   takes the chat and the text after the command's name; returns False to end the chat
    usage: arguments after the name; `<...>` is required, `[...]` optional
    """

    run: Handler
    help: str
    usage: str = ""


COMMANDS: dict[str, SlashCommand] = {}
"""Commands by name, of one or two words."""


def _command(name: str, help_text: str, usage: str = "") -> Callable[[Handler], Handler]:
    def add(run: Handler) -> Handler:
        COMMANDS[name] = SlashCommand(run, help_text, usage)
        return run

    return add


def run_chat(chat: Chat) -> None:
    """Chats until Ctrl+D or `/bye`."""
    chat.greet()
    while True:
        try:
            with chat.engine.pause() if chat.is_open else nullcontext():
                text = read_block(chat.ask)
            if take(chat, text) is False:
                break
        except EOFError:
            break
        except KeyboardInterrupt as interrupt:
            if not any(interrupt.args):
                chat.screen.say("Use Ctrl + d or /bye to exit.")
        except (EagleError, OSError, ValueError, click.ClickException) as error:
            chat.screen.note(f"error: {message(error)[0]}")
    if (saved := chat.session.saved) is not None and saved.stamp is not None:
        chat.screen.note(f"saved; to continue this chat: `eaglecpp run {saved.model} --continue`")


def take(chat: Chat, text: str) -> Any:
    """Answers a message or runs a command. Returns False to end the chat."""
    if not is_command(text):
        return _ask(chat, unquoted(text) if text.startswith('"""') else text.strip("\n"))
    for n_words in (2, 1):
        words = text.strip().split(maxsplit=n_words)
        name, rest = " ".join(words[:n_words]), "".join(words[n_words:])
        if (command := COMMANDS.get(name)) is not None:
            if rest or not command.usage.startswith("<"):
                if name.startswith(("/save", "/show")):
                    # Ctrl+C takes no effect here, because numpy cannot be imported again after an
                    # interrupted import.
                    with Watch().listening():
                        import eaglecpp.store.create  # noqa: F401
                return command.run(chat, rest)
            return chat.screen.say(f"Usage:\n  {name} {command.usage}")
    words = text.split()
    group = [one for one in COMMANDS if one.startswith(words[0] + " ")]
    if group and len(words) == 1:
        return chat.screen.say(explained(words[0]))
    # A leading slash may be the beginning of a picture's path.
    if not named_pictures(text)[0].startswith("/"):
        return _ask(chat, text.strip("\n"))
    name = " ".join(words[: 2 if group else 1])
    near = nearest(name, COMMANDS) if len(name) > 1 else None
    meant = f"Did you mean {near}?" if near else "Type /? for help"
    return chat.screen.say(f"Unknown command '{name}'. {meant}")


def _ask(chat: Chat, text: str) -> Any:
    """Answers a message. If a message consists only of pictures, the pictures are attached to the next
    message.
    """
    text = with_pictures(chat, text)
    return chat.reply(partial(chat.session.stream, text)) if text.strip() else None


def with_pictures(chat: Chat, text: str, words: Sequence[str] = ()) -> str:
    """Attaches the pictures that a message names, as Ollama does, and returns the rest of the message.

    words: words of the command line. If a picture file among these words is missing, this is reported even if
    the model reads no pictures
    """
    rest, paths, missing = named_pictures(text)
    if not chat.reads_pictures:
        missing = [name for name in missing if name in words]
        for path in paths:
            chat.screen.note(f"note: {path} is not attached: {chat.source.label} does not read pictures")
    else:
        chat.images += [read_picture(path) for path in paths]
        for path in paths:
            chat.screen.note(f"Added image '{path}'")
        text = rest
    if missing:
        chat.screen.note(f"note: no such file: {', '.join(missing)}; the model sees only the name")
    return text


def explained(topic: str) -> str:
    """Returns the help texts of the commands whose names begin with a text."""
    rows = [_row(name) for name in COMMANDS if name.startswith(topic)]
    return help_table("Available Commands:", rows) + "\n" if rows else f"There is no command {topic}"


def _row(name: str) -> tuple[str, str]:
    """Returns a line of the help: a command with its arguments, and an explanation."""
    return f"{name} {COMMANDS[name].usage}".strip(), COMMANDS[name].help


# Commands that change settings


@_command("/set parameter", "Set a parameter; without a value, list them", "[name value]")
def _parameter(chat: Chat, rest: str) -> None:
    """Clamps a parameter's value to its range, and prints a note if the value changed."""
    name, *words = rest.split() or [""]
    if not words:
        rows = [(f"/set parameter {p.name} <{p.kind_name}>", p.help) for p in PARAMETERS.values()]
        chat.screen.say(help_table("Available Parameters:", rows) + "\n")
        return
    if name in DEPRECATED:
        raise InvalidValueError(f"parameter {name} is deprecated")
    if name not in PARAMETERS:
        near = nearest(name, PARAMETERS)
        hint = f"did you mean {near}?" if near else "/set parameter lists all"
        raise InvalidValueError(f"unknown parameter '{name}'; {hint}")
    value = parse_value(name, words[0])
    parameter = PARAMETERS[name]
    fitted = parameter.fitted(tuple(words) if parameter.kind == "strings" else value)
    if fitted != value and parameter.kind != "strings":
        chat.screen.note(f"note: the range of {name} is {parameter.range}; using {fitted}")
        words = [str(fitted)]
    if chat.set_parameter(name, fitted):
        chat.screen.note(f"the model was reloaded; context {chat.engine.n_ctx} tokens")
        chat.conversation.n_left_out = 0
    chat.say_notices()
    chat.save()
    chat.screen.say(f"Set parameter '{name}' to '{', '.join(words)}'")


@_command("/set system", "Set the system prompt of the whole chat", "<text>")
def _set_system(chat: Chat, rest: str) -> None:
    chat.session.system = unquoted(rest)
    chat.save()
    chat.screen.say("Set system message.")


@_command("/set think", "Let the model think before it answers", "[level]")
def _think(chat: Chat, rest: str) -> None:
    chat.settings.think = rest or True
    if chat.is_open and chat.engine.chat_template.tags is None:
        chat.screen.note(f"note: the template of {chat.source.label} has no tags for thinking")
    chat.screen.say(f"Set 'think' mode to '{rest}'." if rest else "Set 'think' mode.")


@_command("/set format", "Answer in JSON, or by a JSON schema", "<json|schema>")
def _format(chat: Chat, rest: str) -> None:
    chat.settings.format = answer_format(unquoted(rest))
    chat.screen.say(f"Set format to '{'json' if rest == 'json' else 'JSON schema'}' mode.")


def _switch(chat: Chat, rest: str, *, name: str, part: str, field: str, value: Any) -> None:
    """Sets a field of the chat's `screen` or `settings`, for a slash command that switches the field."""
    setattr(getattr(chat, part), field, value)
    chat.save()
    chat.screen.say(f"Set '{name}' mode.")


for _name, _part, _field, _value, _help_text in (
    ("nothink", "settings", "think", False, "Answer without thinking"),
    ("noformat", "settings", "format", {}, "Answer in any format"),
    ("history", "settings", "history", True, "Save typed lines and this chat to disk"),
    ("nohistory", "settings", "history", False, "Save no more lines to disk; saved lines stay"),
    ("wordwrap", "screen", "wrap", True, "Break lines between words"),
    ("nowordwrap", "screen", "wrap", False, "Do not break lines"),
    ("verbose", "settings", "figures", "all", "Show all statistics after an answer"),
    ("noverbose", "settings", "figures", "line", "Show one line of statistics"),
    ("quiet", "settings", "figures", "none", "Show no statistics"),
):
    _run = partial(_switch, name=_name, part=_part, field=_field, value=_value)
    COMMANDS[f"/set {_name}"] = SlashCommand(_run, _help_text)


@_command("/strategy", "Show or set how to draft", "[auto|off|...]")
def _strategy(chat: Chat, rest: str) -> None:
    if rest:
        if chat.set_strategy(Strategy.parse(rest)):
            chat.screen.note("the model was reloaded for this strategy")
        chat.say_notices()
    described = str(chat.strategy)  # a server reports the resolved strategy only together with an answer
    if chat.is_open:
        resolved, why = chat.engine.resolve(chat.strategy)
        described = f"{resolved} ({why})"
    chat.screen.say(f"Strategy: {described}")


# Commands that show facts


def chat_modelfile(chat: Chat, *, to_save: bool = False) -> Modelfile:
    """Returns the model's Modelfile with the changes of this chat: system prompt, parameters, strategy, and
    messages without pictures. to_save: if the model is stored, return only the changes.
    """
    source, settings = chat.source, chat.settings
    adds = to_save and source.name is not None
    base = Modelfile(from_=(Command("model", source.reference),)) if adds else source.modelfile
    draft = base.draft
    if source.draft is not None and not draft and (source.names_draft or not adds):
        draft = (Command("draft", str(source.draft)),)
    strategy = (Command("strategy", settings.strategy_set),) if settings.strategy_set else ()
    messages = (*chat.conversation.examples, *chat.conversation.messages)
    return replace(
        base,
        draft=draft,
        system=chat.conversation.system or None,
        messages=tuple(replace(one, content=one.text, images=(), attached=0) for one in messages),
        parameters={**base.parameters, **settings.parameters},
        pragmas=(*base.pragmas, *strategy),
    )


def _modelfile(chat: Chat) -> str:
    from eaglecpp.store.facts import read_facts

    draft = chat.source.draft
    return for_both(chat_modelfile(chat), read_facts([draft]).draft_kind if draft else "").to_text()


def _facts(chat: Chat) -> Facts:
    """Returns the facts in the header of the model's file. Does not open the model, because a server may
    answer.
    """
    from eaglecpp.store.facts import read_facts

    chat.check_here()
    return read_facts([chat.source.target])


def _info(chat: Chat) -> str:
    """Returns the model's properties, as in Ollama, and the options of the next answer."""
    from eaglecpp.cli.show import model_rows

    is_without = chat.is_open and chat.engine.plan.draft is None  # the drafter may not fit
    plan = chat.plan.without_drafts() if is_without and not chat.plan.drafts_text_alone else chat.plan
    facts = _facts(chat)
    return section("Model", model_rows(facts)) + fitted(plan_text(plan, template_of(chat.source, facts)), 12)


def _license(chat: Chat) -> str:
    texts = chat.source.modelfile.license
    text = "\n\n".join(texts) if texts else _facts(chat).file.text("general.license", "")
    return text or "No license was specified for this model."


def _template(chat: Chat) -> str:
    template = template_of(chat.source, _facts(chat))
    return f"{template.text}\n\n({template.describe()})"


def _show(chat: Chat, rest: str, *, tell: Callable[[Chat], str]) -> None:
    # The text is not wrapped, because users copy texts such as templates and Modelfiles.
    chat.screen.say(tell(chat), verbatim=True)


_FACTS: dict[str, tuple[Callable[[Chat], str], str]] = {
    "info": (_info, "The model, and the origin of each option"),
    "license": (_license, "License of the model"),
    "modelfile": (_modelfile, "A Modelfile that creates this model, including this chat"),
    "parameters": (
        lambda chat: parameter_text(chat_modelfile(chat)) or "No parameters were specified for this model.",
        "Parameters of the model, and those set here",
    ),
    "system": (
        lambda chat: chat.conversation.system or "No system message was specified for this model.",
        "The system prompt",
    ),
    "template": (_template, "The chat template, and why it was chosen"),
}
for _name, (_tell, _help_text) in _FACTS.items():
    COMMANDS[f"/show {_name}"] = SlashCommand(partial(_show, tell=_tell), _help_text)


# Commands for models and chats


@_command("/load", "Switch to another model, or to a saved chat", "<model or chat>")
def _load(chat: Chat, rest: str) -> None:
    if (saved := ChatFolder(data_dir() / "chats").find(rest)) is not None:
        restored = chat.settings.restored(saved.parameters, saved.strategy)
        chat.change(True, restored, look_up(saved.model, saved.draft))
        chat.start_over(saved=saved)
        chat.greet()
        return
    source = look_up(*rest.split(maxsplit=1))
    chat.screen.say(f"Loading model '{rest}'")
    chat.change(True, chat.settings, source)
    chat.start_over()
    chat.say_notices()


@_command("/save", "Save this chat as a stored model", "<model>")
def _save(chat: Chat, rest: str) -> None:
    from eaglecpp.store.create import create_model

    name = ModelName.parse(rest)
    chat.check_here()
    stores = Stores.open()
    if name not in chat.made and not _may_take(chat, stores, name):
        chat.screen.say("Nothing was saved.")
        return
    create_model(stores, name, chat_modelfile(chat, to_save=True), Path.cwd())
    chat.made.add(name)
    chat.screen.say(f"Created new model '{rest}'")
    if n_pictures := sum(len(message.images) for message in chat.conversation.messages):
        chat.screen.note(f"note: a model stores no pictures; {n_pictures} of this chat are left out")


def _may_take(chat: Chat, stores: Stores, name: ModelName) -> bool:
    """Returns True if a model name is free, or if the user agrees to replace or hide the model with this
    name.
    """
    from eaglecpp.store.packaged import is_packaged

    existing = stores.find(name)
    if existing is None and not is_packaged(name):
        return True
    what = "replaced by this chat" if existing is not None and existing.own else "hidden behind this chat"
    question = f"The model {str(name).removesuffix(':latest')} exists and would be {what}. Continue? (y/N) "
    return chat.ask(question, "").strip().lower() in ("y", "yes")


@_command("/list", "List the models on this machine", "[prefix]")
def _list(chat: Chat, rest: str) -> None:
    from eaglecpp.cli.stored import list_models

    list_models.main(args=["--", rest], standalone_mode=False)


@_command("/chats", "List recent chats, or chats with a given text", "[text]")
def _chats(chat: Chat, rest: str) -> None:
    rows = []
    for one in islice(ChatFolder(data_dir() / "chats").chats(rest), 20):
        first = next((m.typed for m in one.messages if m.role == "user"), "")
        when = human_time(datetime.fromtimestamp(one.updated, UTC))
        rows.append((one.id, one.model, when, " ".join(first.split())[:60]))
    chat.screen.say(table(("ID", "MODEL", "SAVED", "BEGINS WITH"), rows) + "To continue a chat: /load ID")


@_command("/clear", "Start a new chat; the system prompt stays")
def _clear(chat: Chat, rest: str) -> None:
    chat.start_over(chat.conversation.system)
    chat.screen.say("Cleared session context")


# Commands about questions


@_command("/regen", "Answer the last question again")
def _regen(chat: Chat, rest: str) -> None:
    chat.reply(chat.session.stream_again, again=True)


@_command("/edit", "Change the last question and ask it again", "[text]")
def _edit(chat: Chat, rest: str) -> None:
    question = next((m for m in reversed(chat.conversation.messages) if m.role == "user"), None)
    if question is None:
        raise InvalidValueError("there is no question to edit")
    text = unquoted(rest) if rest else chat.ask(PROMPT, question.typed).strip("\n")
    text = with_pictures(chat, unquoted(text) if text.startswith('"""') else text)
    if text.strip():
        chat.reply(partial(chat.session.edit, text))


@_command("/read", "Attach a text file or a picture to your next message", "<file>")
def _read(chat: Chat, rest: str) -> None:
    path = expanded(unquoted(rest).strip("'"))
    if is_image_name(path.name) and not chat.reads_pictures:
        raise InvalidValueError(f"{path}: this model was opened without a projector (--mmproj)")
    if len(data := read_limited(path, MAX_INPUT)) > MAX_INPUT:
        raise InvalidValueError(f"{path}: the file is larger than {human_bytes(MAX_INPUT)}")
    if is_image_name(path.name):
        chat.images.append(checked_image(data))
    else:
        chat.attached.append(f"{path.name}:\n\n{decoded_text(path, data)}")
    chat.screen.say(f"Read {path}. It will be put before your next message.")


# Commands about the chat


_KEYS = (
    ("Alt+Enter", "A new line in the message"),
    ("Tab", "Complete a command, parameter, file or model"),
    ("Up, Down", "Earlier messages, also of earlier chats"),
    ("Ctrl+R", "Search earlier messages"),
    ("Ctrl+G", "Write in your editor (VISUAL, EDITOR)"),
    ("Ctrl+A, Ctrl+E", "Move to the beginning or end of the line"),
    ("Alt+B, Alt+F", "Move one word back or forth"),
    ("Ctrl+K, Ctrl+U", "Delete to the end or beginning of the line"),
    ("Ctrl+W", "Delete the word before the cursor"),
    ("Ctrl+L", "Clear the screen"),
    ("Ctrl+C", "End the answer, or discard what is typed"),
    ("Ctrl+D", "Leave"),
)


@_command("/help", "Same as /?", "[command]")
@_command("/?", "Show this help, or the help of a command", "[command]")
def _help(chat: Chat, rest: str) -> None:
    topic = rest.strip().removeprefix("/")
    if topic == "shortcuts":
        chat.screen.say(help_table("Available keyboard shortcuts:", _KEYS) + "\n")
    elif topic:
        chat.screen.say(explained(f"/{topic}"))
    else:
        groups = [
            ("/set ...", "Change parameters and settings: /? set"),
            ("/show ...", "Show information about the model: /? show"),
        ]
        rows = [_row(name) for name in COMMANDS if " " not in name and name not in ("/help", "/exit")]
        chat.screen.say(
            help_table("Available Commands:", [*groups, *rows, ("/? shortcuts", "Show the keys")])
        )
        chat.screen.say('Use """ to begin and end a message of several lines.')


@_command("/bye", "Leave")
@_command("/exit", "Leave")
def _bye(chat: Chat, rest: str) -> bool:
    return False
