# SPDX-License-Identifier: MIT
'''Turns user input into a message or a command, including `"""` blocks of several lines.

A callback asks for a line or a pasted block, so no terminal is needed.
'''

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import click

from eaglecpp.chat.images import checked_image
from eaglecpp.cli.options import read_input
from eaglecpp.errors import InvalidValueError

Ask = Callable[[str, str], str]
"""Asks the user: (prompt, initial text) -> the typed text.

Raises EOFError for Ctrl+D, and KeyboardInterrupt for Ctrl+C with the typed text as its first argument.
"""

PROMPT, CONTINUATION = ">>> ", "... "
_QUOTE = '"""'
_BLOCK = re.compile(r'(?:/set\s+system\s+|/edit\s+)?(""".*)', re.DOTALL)
_MULTILINE = ("/set system", "/edit")
_KIND = r"\.(?i:png|jpe?g|gif|bmp|webp)"
# Matches the path of a picture. The path may be in quotes, have no blanks, or have escaped blanks. It may
# also have plain blanks if the whole text begins like a path.
_PICTURE = re.compile(
    rf"""(?<!\S)(?:(["'])([^\n]{{1,300}}?{_KIND})\1"""
    rf"""|((?:\\.|[^\s\\'"]){{1,300}}?{_KIND}|(?:[a-zA-Z]:[\\/]|~?/|\.\.?/)[^\n'"]{{1,300}}?{_KIND})(?![./]?\w))"""
)


def no_input(prompt: str, default: str) -> str:
    """Ends a chat that reads no lines."""
    raise EOFError


def is_open(text: str) -> bool:
    '''True inside an unfinished `"""` block.'''
    match = _BLOCK.match(text)
    return match is not None and not _is_closed(match[1])


def read_block(ask: Ask) -> str:
    '''Reads one message or command; asks for more lines while a `"""` block is open.'''
    text = ask(PROMPT, "")
    while is_open(text):
        text += "\n" + ask(CONTINUATION, "")
    return text


def unquoted(text: str) -> str:
    '''Returns the text inside `"""` or `"`, without line breaks next to the quotes; else the text itself.'''
    text = text.strip()
    if text.startswith(_QUOTE) and _is_closed(text):
        return text[3:-3].strip("\n")
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text


def is_command(text: str) -> bool:
    """Returns True if the input is a slash command. Input of several lines can only be a command that takes a
    block, because pasted code may begin with a slash.
    """
    return text.startswith("/") and ("\n" not in text.strip() or text.startswith(_MULTILINE))


def named_pictures(text: str) -> tuple[str, list[Path], list[str]]:
    """Finds the picture files that a message names. Returns the text without the names of these files, the
    paths of the files, and the names of missing files. The code uses os.path, because pathlib raises for
    unknown users and unreadable files.
    """
    found, missing, rest, start = list[Path](), dict[str, None](), "", 0
    while match := _PICTURE.search(text, start):
        name = match[2] or match[3]
        names = (os.path.expanduser(one) for one in (name, re.sub(r"\\(.)", r"\1", name)))  # noqa: PTH111
        path = next((Path(one) for one in names if os.path.isfile(one)), None)  # noqa: PTH113
        if path is None:
            if not re.search(r"\s|://", name):
                missing[name] = None
            rest += text[start : match.start() + 1]
            start = match.start() + 1
        else:
            found.append(path)
            rest += text[start : match.start()]
            start = match.end()
    return (rest + text[start:]).strip() if found else text, found, [*missing]


def read_picture(path: str | Path) -> bytes:
    """Reads a picture file. Raises the errors of `read_input`, and click.ClickException for a file that is
    not a picture.
    """
    try:
        return checked_image(read_input(str(path)))
    except InvalidValueError as error:
        raise click.ClickException(f"{path}: {error}") from None


def _is_closed(block: str) -> bool:
    return len(block.rstrip()) >= 6 and block.rstrip().endswith(_QUOTE)
