# SPDX-License-Identifier: MIT
"""Prompts a benchmark can make anywhere: code, prose, random tokens and copies.

*code* is cut from modules of the running Python's standard library, *prose* from `data/prose.txt`; *random*
is token ids drawn at random, without control tokens. All are seeded and cut to the same number of tokens.
*copy* (`data/copy.jsonl`) has whole prompts that ask to repeat a text with a change. Python's version decides
what *code* is, so only runs under one version have the same prompts.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

import eaglecpp

SETS = ("code", "prose", "random")
PROSE = Path(__file__).with_name("data") / "prose.txt"
MODULES = (
    *("argparse", "textwrap", "configparser", "difflib", "calendar", "shutil", "csv", "fractions", "heapq"),
    *("ipaddress", "mailbox", "optparse", "pathlib", "pickle", "queue", "sched", "smtplib", "statistics"),
    *("tarfile", "threading", "traceback", "typing", "uuid", "zipfile"),
)


def make_prompts(
    name: str, engine: eaglecpp.Engine, n_prompts: int, n_tokens: int, seed: int
) -> list[list[int]]:
    """`n_prompts` prompts of the set `name`, token ids, `n_tokens` each; the first ones do not depend on
    `n_prompts`. Raises `SystemExit` for an unknown set and when a set cannot give so many.
    """
    generator = np.random.default_rng([seed, *name.encode()])
    if name == "random":
        usable = [token for token in range(engine.n_vocab) if engine.token_to_piece(token)]
        return [[int(t) for t in generator.choice(usable, n_tokens)] for _ in range(n_prompts)]
    if name == "copy":
        lines = PROSE.with_name("copy.jsonl").read_text(encoding="utf-8").splitlines()
        prompts = [engine.tokenize(json.loads(line)["prompt"]) for line in lines]
    elif name in SETS:
        texts = _code() if name == "code" else PROSE.read_text(encoding="utf-8").split("\n\n")
        prompts = list(_cut(texts, engine.tokenize, n_tokens, generator))
    else:
        raise SystemExit(f"prompt set {name!r}: expected one of {', '.join(SETS)}, copy")
    if len(prompts) < n_prompts:
        raise SystemExit(
            f"prompt set {name!r} gives {len(prompts)} prompts of {n_tokens} tokens, {n_prompts} are needed: "
            "ask for fewer or shorter ones"
        )
    return prompts[:n_prompts]


def _code() -> list[str]:
    found = (importlib.util.find_spec(module) for module in MODULES)
    paths = [Path(spec.origin) for spec in found if spec is not None and spec.origin is not None]
    # a package is its __init__.py, which may hold next to nothing
    texts = [path.read_text(encoding="utf-8") for path in paths if path.suffix == ".py"]
    return [text for text in texts if len(text) > 8000]


def _cut(
    texts: Sequence[str],
    tokenize: Callable[[str], list[int]],
    n_tokens: int,
    generator: np.random.Generator,
) -> Iterator[list[int]]:
    """One prompt of each text, from the begin of a line on; texts too short for one are passed over."""
    for text in texts:
        lines = text.splitlines(keepends=True)
        first = int(generator.integers(0, max(1, len(lines) - 40)))
        ids = tokenize("".join(lines[first : first + 80]))
        if len(ids) >= n_tokens:
            yield ids[:n_tokens]
