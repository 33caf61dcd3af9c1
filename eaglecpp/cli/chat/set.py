# SPDX-License-Identifier: MIT
"""`/set`: the settings of a chat. Answers are Ollama's where Ollama has the setting."""

from __future__ import annotations

from functools import partial
from typing import Any

from eaglecpp.cli.chat.chat import Chat, check_format
from eaglecpp.cli.chat.input import unquoted
from eaglecpp.cli.chat.words import Word, explained
from eaglecpp.cli.table import help_table
from eaglecpp.human import nearest
from eaglecpp.modelfile.parameters import DEPRECATED, PARAMETERS, ParameterError, parse_value


def _system(chat: Chat, value: str) -> None:
    """Sets the system prompt for the whole chat, including what was said before."""
    if not value:
        chat.screen.say(explained(SETTINGS, "/set "))
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
    if name in DEPRECATED:
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


def _switch(what: str, said: str, owner: str, name: str, value: Any) -> Word:
    """Sets a field of the chat's `screen` or `settings`."""

    def change(chat: Chat, rest: str) -> None:
        setattr(getattr(chat, owner), name, value)
        chat.screen.say(said)

    return Word(change, what)


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
    check_format(value)
    chat.settings.format = value
    chat.screen.say(f"Set format to '{'json' if value == 'json' else 'JSON schema'}' mode.")


def _think(chat: Chat, value: str, *, think: bool = True) -> None:
    chat.settings.think = (value or True) if think else False
    if chat.model.is_open and chat.model.chat.tags is None:
        chat.screen.note(f"warning: the template of {chat.model.source.name} does not support thinking")
    mode = "think" if think else "nothink"
    chat.screen.say(f"Set '{mode}' mode to '{value}'." if value and think else f"Set '{mode}' mode.")


SETTINGS = {
    "parameter": Word(_parameter, "Set a parameter; without a value, list them", "..."),
    "system": Word(_system, "Set the system prompt", "<text>"),
    "history": Word(_history, "Save typed lines and this chat to disk"),
    "nohistory": Word(_nohistory, "Save nothing to disk from now on"),
    "wordwrap": _switch("Break lines between words", "Set 'wordwrap' mode.", "screen", "wrap", True),
    "nowordwrap": _switch("Do not break lines", "Set 'nowordwrap' mode.", "screen", "wrap", False),
    "format": Word(_format, "Answer in JSON; a JSON schema works, too", "json"),
    "noformat": _switch("Answer in any form", "Disabled format.", "settings", "format", ""),
    "verbose": _switch(
        "Show all statistics after an answer", "Set 'verbose' mode.", "settings", "figures", "all"
    ),
    "noverbose": _switch(
        "Show one line of statistics", "Set 'noverbose' mode.", "settings", "figures", "line"
    ),
    "quiet": _switch("Show no statistics", "Set 'quiet' mode.", "settings", "figures", "none"),
    "think": Word(_think, "Let the model think before it answers", "[level]"),
    "nothink": Word(partial(_think, think=False), "Do not let the model think"),
}
