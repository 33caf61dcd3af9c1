# SPDX-License-Identifier: MIT
"""`/set`: the settings of a chat. Answers are Ollama's where Ollama has the setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from eaglecpp.cli.chat.chat import Chat, response_format
from eaglecpp.cli.chat.input import unquoted
from eaglecpp.cli.table import help_table
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.human import nearest
from eaglecpp.modelfile.parameters import DEPRECATED, PARAMETERS, RETIRED, ParameterError, parse_value

__all__ = ["SETTINGS", "set_help", "set_system", "setting", "unknown"]


@dataclass(frozen=True)
class Setting:
    """One word behind `/set`. usage: that word and what follows."""

    usage: str
    help: str
    change: Callable[[Chat, str], None]


def setting(chat: Chat, rest: str) -> None:
    """Runs `/set ...`."""
    word, _, value = rest.partition(" ")
    if word == "":
        chat.screen.say(set_help())
    elif word in SETTINGS:
        SETTINGS[word].change(chat, value.strip())
    else:
        chat.screen.say(unknown("/set ", word, SETTINGS))


def unknown(before: str, word: str, known: Iterable[str]) -> str:
    """What to say about a command that does not exist. before: what its last word follows"""
    near = nearest(word, known)
    meant = f"Did you mean {before}{near}?" if near else "Type /? for help"
    return f"Unknown command '{before}{word}'. {meant}"


def set_help() -> str:
    """What `/set` alone says."""
    rows = [(f"/set {one.usage}", one.help) for one in SETTINGS.values()]
    return help_table("Available Commands:", rows) + "\n"


def set_system(chat: Chat, value: str) -> None:
    """Sets the system prompt for the whole chat, including what was said before."""
    if not value:
        chat.screen.say(set_help())
        return
    chat.session.system = unquoted(value)
    chat.save()
    chat.screen.say("Set system message.")


def _parameter(chat: Chat, value: str) -> None:
    """`/set parameter NAME VALUE ...`; a value outside the range is moved into it, with a note."""
    name, *words = value.split() or [""]
    if not words:
        rows = [(f"/set parameter {p.name} <{p.kind}>", p.help) for p in PARAMETERS.values()]
        chat.screen.say(help_table("Available Parameters:", rows) + "\n")
        return
    if name in DEPRECATED | RETIRED:
        chat.screen.note(f"warning: parameter {name} is deprecated")
        return
    try:
        values = [parse_value(name, word) for word in words[: None if name == "stop" else 1]]
    except ParameterError as error:
        near = None if name in PARAMETERS else nearest(name, PARAMETERS)
        chat.screen.say(f'Couldn\'t set parameter: "{error}"' + (f"; did you mean {near}?" if near else ""))
        return
    parameter = PARAMETERS[name]
    given = tuple(words) if parameter.kind == "strings" else values[0]
    fitted = parameter.fitted(given)
    if fitted != given:
        chat.screen.note(f"note: the range of {name} is {parameter.range}; using {fitted}")
        words = [str(fitted)]
    if chat.model.set_parameter(name, fitted):
        chat.screen.note(f"the model was reloaded; context {chat.model.engine.n_ctx} tokens")
        chat.conversation.n_left_out = 0
    chat.say_notices()
    chat.save()
    chat.screen.say(f"Set parameter '{name}' to '{', '.join(words)}'")


def _switch(said: str, owner: str, name: str, value: Any) -> Callable[[Chat, str], None]:
    """Sets a field of the chat's `screen` or `settings`."""

    def change(chat: Chat, rest: str) -> None:
        setattr(getattr(chat, owner), name, value)
        chat.screen.say(said)

    return change


def _history(chat: Chat, value: str) -> None:
    chat.settings.history = True
    chat.save()
    chat.screen.say("Set 'history' mode.")


def _nohistory(chat: Chat, value: str) -> None:
    chat.settings.history = False
    chat.screen.say("Set 'nohistory' mode.")
    if (saved := chat.session.saved) is not None and saved.stamp is not None:
        chat.screen.note("what was saved so far stays on disk")


def _format(chat: Chat, value: str) -> None:
    value = unquoted(value)
    if value != "json" and not value.startswith("{"):
        chat.screen.say("Invalid or missing format. For 'json' mode use '/set format json'")
        return
    resolve_grammar(**response_format(value))  # raises what is wrong with a schema
    chat.settings.format = value
    chat.screen.say(f"Set format to '{'json' if value == 'json' else 'JSON schema'}' mode.")


def _think(chat: Chat, value: str, *, think: bool = True) -> None:
    chat.settings.think = (value or True) if think else False
    if chat.model.is_open and chat.model.chat.tags is None:
        chat.screen.note(f"warning: the template of {chat.model.source.name} does not support thinking")
    mode = "think" if think else "nothink"
    chat.screen.say(f"Set '{mode}' mode to '{value}'." if value and think else f"Set '{mode}' mode.")


def _nothink(chat: Chat, value: str) -> None:
    _think(chat, value, think=False)


SETTINGS = {
    "parameter": Setting("parameter ...", "Set a parameter; without a value, list them", _parameter),
    "system": Setting("system <text>", "Set the system prompt", set_system),
    "history": Setting("history", "Save typed lines and this chat to disk", _history),
    "nohistory": Setting("nohistory", "Save nothing to disk from now on", _nohistory),
    "wordwrap": Setting(
        "wordwrap", "Break lines between words", _switch("Set 'wordwrap' mode.", "screen", "wrap", True)
    ),
    "nowordwrap": Setting(
        "nowordwrap", "Do not break lines", _switch("Set 'nowordwrap' mode.", "screen", "wrap", False)
    ),
    "format": Setting("format json", "Answer in JSON; a JSON schema works, too", _format),
    "noformat": Setting(
        "noformat", "Answer in any form", _switch("Disabled format.", "settings", "format", "")
    ),
    "verbose": Setting(
        "verbose",
        "Show all statistics after an answer",
        _switch("Set 'verbose' mode.", "settings", "verbose", True),
    ),
    "quiet": Setting(
        "quiet", "Show one line of statistics", _switch("Set 'quiet' mode.", "settings", "verbose", False)
    ),
    "think": Setting("think [level]", "Let the model think before it answers", _think),
    "nothink": Setting("nothink", "Do not let the model think", _nothink),
}
