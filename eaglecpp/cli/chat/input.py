# SPDX-License-Identifier: MIT
'''Turns what a user types into a message or a command, including `"""` blocks of several lines.

Takes a callback that asks for one line, or for a pasted block of lines, so that it needs no terminal.
'''

from __future__ import annotations

import re
from collections.abc import Callable

Ask = Callable[[str, str], str]
"""Asks the user: (prompt, text to begin with) -> what was typed.

Raises EOFError for Ctrl+D and KeyboardInterrupt for Ctrl+C; the latter's first argument is what was typed.
"""

PROMPT, CONTINUATION = ">>> ", "... "
_QUOTE = '"""'
_BLOCK = re.compile(r'(?:/set\s+system\s+|/edit\s+)?(""".*)', re.DOTALL)
_MULTILINE = ("/set system", "/edit")


def is_open(text: str) -> bool:
    '''Whether a `"""` block has begun and not ended.'''
    match = _BLOCK.match(text)
    return match is not None and not _is_closed(match[1])


def read_block(ask: Ask) -> str:
    '''One message or command; keeps asking while a `"""` block is open.'''
    text = ask(PROMPT, "")
    while is_open(text):
        text += "\n" + ask(CONTINUATION, "")
    return text


def unquoted(text: str) -> str:
    '''The text inside of `"""` or `"`, without the line breaks next to the quotes; else the text itself.'''
    text = text.strip()
    if text.startswith(_QUOTE) and _is_closed(text):
        return text[3:-3].strip("\n")
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text


def is_command(text: str) -> bool:
    """Whether this is a slash command, not a message. Of several lines only a block of a command that takes
    one is a command: pasted code may well begin with a slash.
    """
    return text.startswith("/") and ("\n" not in text.strip() or text.startswith(_MULTILINE))


def _is_closed(block: str) -> bool:
    return len(block.rstrip()) >= 6 and block.rstrip().endswith(_QUOTE)
