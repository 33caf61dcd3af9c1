# SPDX-License-Identifier: MIT
"""Reads training data from disk: files and folders become chats, texts and recorded answers, which are not
tokenized yet.

The suffix determines a file's kind: `.jsonl` and `.json` hold one object per conversation (`messages` with
role and content, ShareGPT's `conversations` with from and value, `text`, or answers recorded by
`train.capture.generate`), any other UTF-8 file is plain text. A folder stands for its text files, sorted by
name. Each record contains its file and line, for error messages.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eaglecpp.chat.message import Message, Role
from eaglecpp.errors import DataError
from eaglecpp.human import counted

TEXT_SUFFIXES = frozenset(
    """
    .txt .text .md .markdown .rst .adoc .tex .org .log .html .css .xml .yaml .yml .toml .ini .cfg .diff .patch
    .py .pyi .c .h .cc .cpp .cxx .hpp .hh .cu .java .kt .js .jsx .mjs .ts .tsx .go .rs .rb .php .swift .scala
    .lua .pl .r .jl .hs .ml .ex .erl .clj .sh .bash .sql .cmake
    """.split()  # noqa: SIM905 # a list of one suffix per line would be a page long
)
"""Suffixes of files that are read in a folder. A file given by its own path may have any suffix."""
_ROLES = {
    **dict.fromkeys(("human", "user"), Role.USER),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bing", "bard"), Role.ASSISTANT),
    "system": Role.SYSTEM,
    **dict.fromkeys(("tool", "function_response", "observation"), Role.TOOL),
}
_SHAPES = (
    '"messages" [{"role", "content"}], "conversations" [{"from", "value"}], "text", or answers recorded with '
    "--generate"
)
_FORMATS = ("eaglecpp answers", "eaglecpp conversations")


@dataclass(frozen=True)
class ChatRecord:
    """A conversation as text. place: file and line, as "file:line"."""

    messages: tuple[Message, ...]
    place: str
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Text:
    """A plain text, all of whose tokens have loss."""

    text: str
    place: str


@dataclass(frozen=True)
class Recorded:
    """Tokens that were sampled from the target, and are never tokenized again: the target's answer to a
    prompt, or a conversation in which the target wrote both sides (`train.capture.converse`). turns: the
    range [begin, end) of each answer, in order.
    """

    tokens: Sequence[int] = field(repr=False)
    turns: Sequence[tuple[int, int]]
    place: str
    is_own: bool


@dataclass(frozen=True)
class Question:
    """A prompt for the target: the text of one user turn, or of a completion."""

    text: str
    place: str


Record = ChatRecord | Text | Recorded | Question


@dataclass
class DataReport:
    """Counts of the training data. tokens: tokens of accepted conversations; trained: tokens with loss.

    cut:     conversations that were longer than the context
    dropped: rejected conversations, by reason
    skipped: ignored files of folders, by reason
    """

    files: int = 0
    conversations: int = 0
    tokens: int = 0
    trained: int = 0
    cut: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Formats the report."""
        source = f"{counted(self.conversations, 'conversation')} from {counted(self.files, 'file')}"
        lines = [f"data: {source}, {self.trained} of {self.tokens} tokens with loss"]
        if self.cut:
            lines.append(f"data: cut {counted(self.cut, 'conversation')} longer than the context")
        for noun, skipped in (("conversation", self.dropped), ("file", self.skipped)):
            lines += [f"data: skipped {counted(n, noun)}: {reason}" for reason, n in skipped.items()]
        return lines


def read_records(paths: Iterable[str | os.PathLike[str]], report: DataReport) -> Iterator[Record]:
    """Yields the records of files and folders, in a fixed order.

    report: receives counts of the files. Raises DataError for a missing path, a file that is not text, or a
    line that is not a record.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from _folder(path, report)
        elif path.is_file():
            report.files += 1
            yield from _file(path)
        else:
            raise DataError(f"{path}: expected a file or folder of training data, found no such path")


def read_prompts(paths: Iterable[str | os.PathLike[str]]) -> Iterator[ChatRecord | Question]:
    """Yields prompts. For a JSON file, these are its `prompt` values, and its chats up to the last question.
    For a plain text file, these are its lines.

    Raises DataError for any other content.
    """
    for path in map(Path, paths):
        if not path.is_file():
            other = "a folder" if path.is_dir() else "no such file"
            raise DataError(f"{path}: expected a file of prompts, found {other}")
        if path.suffix.lower() not in JSON_SUFFIXES:
            for number, line in enumerate(decoded(path, path.read_bytes(), str(path)).splitlines(), 1):
                if line.strip():
                    yield Question(line.strip(), f"{path}:{number}")
            continue
        for place, value in read_objects(path):
            yield _asked(_record(value, place), place)


def _asked(record: Record | None, place: str) -> ChatRecord | Question:
    """Turns a record into a prompt, which leaves out the messages after the last question."""
    if isinstance(record, Question):
        return record
    if not isinstance(record, ChatRecord):
        raise DataError(f'{place}: expected "messages" or "prompt", found no question to answer')
    n = len(record.messages)
    while n and record.messages[n - 1].role not in (Role.USER, Role.TOOL):
        n -= 1
    if not n:
        raise DataError(f"{place}: expected messages that end in a user turn, found no user turn")
    return replace(record, messages=record.messages[:n])


def _folder(folder: Path, report: DataReport) -> Iterator[Record]:
    n_before = report.files
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
        if hidden or not path.is_file():
            continue
        if path.suffix.lower() not in (*TEXT_SUFFIXES, ".jsonl", ".ndjson"):
            report.skipped["other file types"] += 1
            continue
        try:
            yield from _file(path)
            report.files += 1
        except NoTextError:
            report.skipped["not UTF-8 text"] += 1
    if report.files == n_before:
        raise DataError(
            f"{folder}: expected text files (.txt, .md, .py and the like) or .jsonl files, found none"
        )


def _file(path: Path) -> Iterator[Record]:
    if path.suffix.lower() in JSON_SUFFIXES:
        for place, value in read_objects(path):
            if (record := _record(value, place)) is not None:
                yield record
    else:
        yield Text(decoded(path, path.read_bytes(), str(path)), str(path))


def _record(value: Any, place: str) -> Record | None:
    """Returns the record of a JSON object, or None for a line without text in a file that eaglecpp wrote."""
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected an object with {_SHAPES}; found {type(value).__name__}")
    if value.get("format") in _FORMATS or ("dropped" in value and "index" in value):
        return None
    if "answer_tokens" in value:
        prompt, answer = (_ids(value, f"{part}_tokens", place) for part in ("prompt", "answer"))
        tokens = [*prompt, *answer]
        return Recorded(tokens, [(len(prompt), len(tokens))], place, is_own=False)
    if "turns" in value:
        return _conversation(value, place)
    if "messages" in value or "conversations" in value:
        return _chat(value, place)
    for key, kind in (("text", Text), ("prompt", Question)):
        if isinstance(value.get(key), str):
            return kind(value[key], place)
    for key in ("text", "prompt"):
        if key in value:
            raise DataError(f'{place}: "{key}": expected a string, found {short(value[key])}')
    raise DataError(f"{place}: expected an object with {_SHAPES}; found the keys {sorted(value)}")


def _chat(value: Mapping[str, Any], place: str) -> ChatRecord:
    key = "messages" if "messages" in value else "conversations"
    turns = value[key]
    if not isinstance(turns, list) or not turns:
        raise DataError(f'{place}: "{key}": expected a list of messages, found {short(turns)}')
    messages = tuple(_message(turn, f'{place}: "{key}"[{index}]') for index, turn in enumerate(turns))
    tools = value.get("tools") or ()
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError(f'{place}: "tools": expected a list of objects, found {short(tools)}')
    return ChatRecord(messages, place, tuple(tools))


def _message(turn: Any, where: str) -> Message:
    if not isinstance(turn, Mapping):
        raise DataError(f"{where}: expected an object, found {short(turn)}")
    if "role" not in turn and "from" in turn:
        role = _ROLES.get(str(turn["from"]).lower())
        if role is None:
            raise DataError(
                f'{where}: "from": expected one of {", ".join(_ROLES)}, found {short(turn["from"])}'
            )
        if not isinstance(turn.get("value"), str):
            raise DataError(f'{where}: "value": expected text, found {short(turn.get("value"))}')
        return Message(role, turn["value"])
    try:
        return Message.from_dict(turn)
    except ValueError as error:
        raise DataError(f'{where}: expected {{"role", "content"}}: {error}') from None


def _conversation(value: Mapping[str, Any], place: str) -> Recorded:
    tokens, turns = _ids(value, "tokens", place), value["turns"]
    edges = [edge for turn in turns for edge in turn] if _are_pairs(turns) else [-1]
    if edges != sorted(edges) or not edges or edges[0] < 0 or edges[-1] > len(tokens):
        raise DataError(
            f'{place}: "turns": expected [begin, end] of each answer, in order and within {len(tokens)} '
            f"tokens, found {short(turns)}"
        )
    return Recorded(tokens, [(begin, end) for begin, end in turns], place, is_own=True)


def _are_pairs(turns: Any) -> bool:
    return isinstance(turns, list) and all(
        isinstance(turn, list) and len(turn) == 2 and all(type(edge) is int for edge in turn)
        for turn in turns
    )


def _ids(value: Mapping[str, Any], key: str, place: str) -> list[int]:
    ids = value.get(key)
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise DataError(f'{place}: "{key}": expected a list of token ids, found {short(ids)}')
    return ids


JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


class NoTextError(DataError):
    """Raised for a file that is not text."""


def read_objects(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of each line of a JSON Lines file, or of each element of a JSON array.

    Raises DataError for a line that is not JSON.
    """
    if path.suffix.lower() == ".json":
        text = decoded(path, path.read_bytes(), str(path))
        if text.lstrip()[:1] == "[":
            for index, value in enumerate(_parsed(text, str(path))):
                yield f"{path}[{index}]", value
            return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                place = f"{path}:{number}"
                yield place, _parsed(decoded(path, line, place), place)


def decoded(path: Path, data: bytes, place: str) -> str:
    """Decodes the UTF-8 text of a file or a line. Raises NoTextError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise NoTextError(f"{place}: expected text in UTF-8, found {where}; convert the file") from None
    if "\0" in text:
        raise NoTextError(f"{place}: expected text, found NUL characters; is {path.name} a binary file?")
    return text


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: expected JSON, found {short(text.strip())} ({error})") from None


def short(value: Any) -> str:
    """Formats a value for an error message, with at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
