# SPDX-License-Identifier: MIT
"""Words that a user may type in a chat, such as those behind `/set`: run, explained, and what is said where
there is no such word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.table import help_table
from eaglecpp.human import nearest

NO_SYSTEM = "No system message was specified for this model."


@dataclass(frozen=True)
class Word:
    """run: gets the chat and the text after the word; False ends the chat
    usage: what follows the word; words: what Tab offers there, ("path",) for files, ("model",) for stored
    models and files
    """

    run: Callable[[Chat, str], bool | None]
    help: str
    usage: str = ""
    words: tuple[str, ...] = ()


def run_word(before: str, words: Mapping[str, Word], chat: Chat, text: str) -> bool:
    """Runs the word that the text begins with; without one, explains all. before: what it stands behind.
    False ends the chat.
    """
    name, _, rest = text.partition(" ")
    if name in words:
        return words[name].run(chat, rest.strip()) is not False
    if name:
        near = nearest(name, words)
        meant = f"Did you mean {before}{near}?" if near else "Type /? for help"
        chat.screen.say(f"Unknown command '{before}{name}'. {meant}")
    else:
        chat.screen.say(explained(words, before))
    return True


def explained(words: Mapping[str, Word], before: str = "") -> str:
    """What each of them does."""
    names: dict[Word, list[str]] = {}
    for name, word in words.items():
        names.setdefault(word, []).append(before + name)
    rows = [(f"{', '.join(same)} {word.usage}".strip(), word.help) for word, same in names.items()]
    return help_table("Available Commands:", rows) + "\n"
