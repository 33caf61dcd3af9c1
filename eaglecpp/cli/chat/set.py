# SPDX-License-Identifier: MIT
"""`/set`: the settings of a chat. Answers are Ollama's where Ollama has the setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.input import unquoted
from eaglecpp.cli.table import help_table
from eaglecpp.human import nearest
from eaglecpp.modelfile.parameters import DEPRECATED, PARAMETERS, RETIRED, ParameterError, parse_value

__all__ = ["SETTINGS", "set_help", "set_parameter", "set_system", "setting", "unknown"]

# word: (usage, help)
SETTINGS = {
    "parameter": ("parameter ...", "Set a parameter; without a value, list them"),
    "system": ("system <text>", "Set the system prompt"),
    "history": ("history", "Save typed lines and this chat to disk"),
    "nohistory": ("nohistory", "Save nothing to disk from now on"),
    "wordwrap": ("wordwrap", "Break lines between words"),
    "nowordwrap": ("nowordwrap", "Do not break lines"),
    "format": ("format json", "Answer in JSON; a JSON schema works, too"),
    "noformat": ("noformat", "Answer in any form"),
    "verbose": ("verbose", "Show all statistics after an answer"),
    "quiet": ("quiet", "Show one line of statistics"),
    "think": ("think [level]", "Let the model think before it answers"),
    "nothink": ("nothink", "Do not let the model think"),
}


def setting(chat: Chat, rest: str) -> None:
    """Runs `/set ...`."""
    word, _, value = rest.partition(" ")
    if word == "":
        chat.screen.say(set_help())
    elif word in _CHANGES:
        _CHANGES[word](chat, value.strip())
    else:
        chat.screen.say(unknown("/set ", word, _CHANGES))


def unknown(before: str, word: str, known: Iterable[str]) -> str:
    """What to say about a command that does not exist. before: what its last word follows"""
    near = nearest(word, known)
    meant = f"Did you mean {before}{near}?" if near else "Type /? for help"
    return f"Unknown command '{before}{word}'. {meant}"


def set_help() -> str:
    """What `/set` alone says."""
    rows = [(f"/set {usage}", text) for usage, text in SETTINGS.values()]
    return help_table("Available Commands:", rows) + "\n"


def set_system(chat: Chat, value: str) -> None:
    """Sets the system prompt for the whole chat, including what was said before."""
    if not value:
        chat.screen.say(set_help())
        return
    chat.conversation.system = unquoted(value)
    chat.save()
    chat.screen.say("Set system message.")


def set_parameter(chat: Chat, value: str) -> None:
    """`/set parameter NAME VALUE ...`; a value outside the range is moved into it, with a note."""
    name, *words = value.split()
    if not words:
        chat.screen.say(_parameter_help())
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
    if chat.model.set_parameter(name, fitted):
        chat.screen.note(f"the model was reloaded; context {chat.model.engine.n_ctx} tokens")
        chat.conversation.n_left_out = 0
    chat.say_notices()
    chat.save()
    chat.screen.say(f"Set parameter '{name}' to '{', '.join(words)}'")


def _parameter_help() -> str:
    rows = [(f"/set parameter {p.name} <{p.kind}>", p.help) for p in PARAMETERS.values()]
    return help_table("Available Parameters:", rows) + "\n"


def _parameter(chat: Chat, value: str) -> None:
    if value:
        set_parameter(chat, value)
    else:
        chat.screen.say(_parameter_help())


def _history(chat: Chat, value: str) -> None:
    chat.settings.history = True
    chat.save()
    chat.screen.say("Set 'history' mode.")


def _nohistory(chat: Chat, value: str) -> None:
    chat.settings.history = False
    chat.screen.say("Set 'nohistory' mode.")
    if chat.saved is not None and chat.saved.stamp is not None:
        chat.screen.note("what was saved so far stays on disk")


def _wordwrap(on: bool) -> Callable[[Chat, str], None]:
    def change(chat: Chat, value: str) -> None:
        chat.screen.wrap = on
        chat.screen.say(f"Set '{'' if on else 'no'}wordwrap' mode.")

    return change


def _verbose(on: bool) -> Callable[[Chat, str], None]:
    def change(chat: Chat, value: str) -> None:
        chat.settings.verbose = on
        chat.screen.say(f"Set '{'verbose' if on else 'quiet'}' mode.")

    return change


def _format(chat: Chat, value: str) -> None:
    value = unquoted(value)
    if value != "json" and not value.startswith("{"):
        chat.screen.say("Invalid or missing format. For 'json' mode use '/set format json'")
        return
    if value != "json":
        from eaglecpp.engine.grammar import resolve_grammar

        resolve_grammar(json_schema=value)
    chat.settings.format = value
    chat.screen.say(f"Set format to '{'json' if value == 'json' else 'JSON schema'}' mode.")


def _noformat(chat: Chat, value: str) -> None:
    chat.settings.format = ""
    chat.screen.say("Disabled format.")


def _think(chat: Chat, value: str) -> None:
    chat.settings.think = value or True
    _warn_without_thinking(chat)
    chat.screen.say(f"Set 'think' mode to '{value}'." if value else "Set 'think' mode.")


def _nothink(chat: Chat, value: str) -> None:
    chat.settings.think = False
    _warn_without_thinking(chat)
    chat.screen.say("Set 'nothink' mode.")


def _warn_without_thinking(chat: Chat) -> None:
    if chat.model.is_open and chat.model.chat.tags is None:
        chat.screen.note(f"warning: the template of {chat.model.source.name} does not support thinking")


_CHANGES: dict[str, Callable[[Chat, str], None]] = {
    "parameter": _parameter,
    "system": set_system,
    "history": _history,
    "nohistory": _nohistory,
    "wordwrap": _wordwrap(True),
    "nowordwrap": _wordwrap(False),
    "format": _format,
    "noformat": _noformat,
    "verbose": _verbose(True),
    "quiet": _verbose(False),
    "think": _think,
    "nothink": _nothink,
}
