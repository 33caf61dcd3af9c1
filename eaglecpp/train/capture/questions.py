# SPDX-License-Identifier: MIT
"""What self-written conversations begin with: system prompts, first words of questions, whole questions.

A chat model left to itself asks the same few kinds of question again and again. First words push it to other
kinds, and whole questions cover what users of any model ask for: explanations, stories, code, arithmetic, and
work on texts, which are docstrings and help topics of the running Python. The target writes all answers.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_WORDS: dict[str, tuple[str, ...]] = {
    kind: tuple(texts)
    for kind, texts in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}
SYSTEMS, OPENINGS, FOLLOW_UPS = (_WORDS[kind] for kind in ("systems", "openings", "follow_ups"))

_MAX_STUB = 900
_MIN_TEXT, _MAX_TEXT = 300, 3500
_CUTS = (600, 1200, 2400, _MAX_TEXT)
_NO_TEXTS = ("test", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo", "ensurepip")


def question(rng: random.Random) -> str:
    """A first question, drawn from all kinds."""
    kind = rng.random()
    one, other = rng.sample(_WORDS["topics"], 2)
    if kind < 0.40:
        return rng.choice(_WORDS["about"]).format(t=one, u=other)
    if kind < 0.55:
        return rng.choice(_WORDS["code"]).format(
            x=rng.choice(_WORDS["tasks"]), y=rng.choice(_WORDS["things"])
        )
    stubs, texts = _sources()
    if kind < 0.75 and stubs:
        return rng.choice(_WORDS["stubs"]).format(s=rng.choice(stubs))
    if kind < 0.85 or not texts:
        return rng.choice(_WORDS["sums"]).format(
            n=rng.randint(2, 20), a=rng.randint(10, 300), b=rng.randint(3, 90)
        )
    return rng.choice(_WORDS["texts"]).format(d=rng.choice(texts)[: rng.choice(_CUTS)])


@lru_cache
def _sources() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(beginnings of functions, texts) of the running Python's standard library."""
    stubs: list[str] = []
    texts: list[str] = []
    for path in _modules():
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):
            continue
        text = ast.get_docstring(tree)
        if text and len(text) > _MIN_TEXT:
            texts.append(text)
        lines = source.splitlines()
        stubs += (stub for node in ast.walk(tree) if (stub := _stub(node, lines)))
    from pydoc_data.topics import topics

    texts += (text for _, text in sorted(topics.items()) if len(text) > _MIN_TEXT)
    return tuple(stubs), tuple(texts)


def _modules() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*root.glob("*.py"), *root.glob("*/*.py")]):
        if path.relative_to(root).parts[0] not in _NO_TEXTS:
            yield path


def _stub(node: ast.AST, lines: list[str]) -> str:
    """A function's head and docstring, "" for what is none or too long."""
    if not isinstance(node, ast.FunctionDef) or len(ast.get_docstring(node) or "") <= 40:
        return ""
    head = lines[node.lineno - 1 : node.body[0].end_lineno]
    n_indent = len(head[0]) - len(head[0].lstrip())
    text = "\n".join(line[n_indent:] for line in head) + "\n"
    return text if len(text) < _MAX_STUB else ""
