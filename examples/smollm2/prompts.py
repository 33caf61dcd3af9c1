# SPDX-License-Identifier: MIT
"""Writes the prompts for `eaglecpp train --generate` that trained the drafter of SmolLM2-135M-Instruct.

    python prompts.py questions > questions.jsonl
    python prompts.py functions > functions.jsonl
    python prompts.py follow-ups questions.jsonl answers.jsonl --target T.gguf > second.jsonl

*questions*: first turns of the conversations in `questions/*.jsonl`, in a fixed random order.
*functions*: requests to complete a function, given its signature and docstring. The functions are from the
running Python's standard library and the installed packages, so the result depends on both.
*follow-ups*: the next turns of the conversations, after the target's answers.
A test checks that no question is in `benchmarks/data` or HumanEval.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUESTIONS = Path(__file__).with_name("questions")
ASKED = "Complete this Python function:\n\n```python\n{}```"
OTHERWISE = (
    "{}",
    "Finish this function.\n\n{}",
    "Implement the following function in Python:\n\n```python\n{}```\n",
    "Write the body of this function:\n\n{}",
    "```python\n{}```\nComplete the code above.",
)
N_FUNCTION = 1100
"""Maximum characters of a signature with its docstring."""
N_CUT = 128
"""Tokens of an unfinished answer to keep before a follow-up question."""

Message = dict[str, str]


def main() -> None:
    args = parse()
    prompts = {"questions": questions, "functions": functions, "follow-ups": follow_ups}[args.what](args)
    for messages in prompts:
        print(json.dumps({"messages": messages}))


def conversations() -> Iterator[list[str]]:
    """Yields the user's turns of each conversation."""
    for path in sorted(QUESTIONS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            yield entry["turns"] if "turns" in entry else [request(entry["prompt"], random.Random(line))]


def questions(args: argparse.Namespace) -> list[list[Message]]:
    first = [[message("user", turns[0])] for turns in conversations()]
    random.Random(5).shuffle(first)
    return first


def functions(args: argparse.Namespace) -> list[list[Message]]:
    rng = random.Random(3)
    found: dict[str, str] = {}
    for path in modules():
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and is_wanted(node):
                found.setdefault(node.name, beginning(node, text.split("\n")))
    texts = sorted(text for text in found.values() if len(text) <= N_FUNCTION)
    rng.shuffle(texts)
    return [[message("user", request(text, rng))] for text in texts[: args.limit]]


def modules() -> Iterator[Path]:
    for name in ("stdlib", "purelib"):
        root = Path(sysconfig.get_path(name))
        for path in sorted(root.rglob("*.py")):
            inside = str(path.relative_to(root)).lower()
            if "test" not in inside and not (name == "stdlib" and inside.startswith("site-packages")):
                yield path


def is_wanted(node: ast.FunctionDef) -> bool:
    """Returns True for functions, except methods, with a docstring long enough to implement them from."""
    doc, first = ast.get_docstring(node) or "", node.args.args[:1]
    is_method = bool(first) and first[0].arg in ("self", "cls")
    return 60 <= len(doc) <= 700 and not (is_method or node.decorator_list or node.name.startswith("__"))


def beginning(node: ast.FunctionDef, lines: list[str]) -> str:
    """Returns the signature and the docstring without indentation."""
    source = lines[node.lineno - 1 : node.body[0].end_lineno]
    indent = len(source[0]) - len(source[0].lstrip())
    return "\n".join(line if line[:indent].strip() else line[indent:] for line in source) + "\n"


def request(code: str, rng: random.Random) -> str:
    return (ASKED if rng.random() < 0.5 else rng.choice(OTHERWISE)).format(code)


def follow_ups(args: argparse.Namespace) -> Iterator[list[Message]]:
    from eaglecpp.train.data.chats import open_tokenizer

    by_question = {turns[0]: turns for turns in conversations()}
    prompts = [json.loads(line)["messages"] for line in args.prompts.read_text("utf-8").splitlines()]
    with open_tokenizer(args.target) as engine:
        for line in args.answers.read_text(encoding="utf-8").splitlines():
            entry: dict[str, Any] = json.loads(line)
            if "answer_tokens" not in entry:
                continue
            messages = prompts[entry["index"]]
            users = [m["content"] for m in messages if m["role"] == "user"]
            planned = by_question.get(users[0], users)
            if len(planned) > len(users):
                tokens = entry["answer_tokens"]
                tokens = tokens[:-1] if entry["finish"] == "stop" else tokens[:N_CUT]
                answer = engine.detokenize(tokens)
                yield [*messages, message("assistant", answer), message("user", planned[len(users)])]


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("questions")
    kinds.add_parser("functions").add_argument("--limit", type=int, default=1600)
    second = kinds.add_parser("follow-ups")
    second.add_argument("prompts", type=Path)
    second.add_argument("answers", type=Path)
    second.add_argument("--target", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
