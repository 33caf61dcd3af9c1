# SPDX-License-Identifier: MIT
"""Records texts for the simulation of drafts from the text (`planner_copies`): token ids, one text in a line.

    python benchmarks/record_texts.py TARGET.gguf [TARGET.gguf ...] --out texts.txt

The greedy answers of each target to the copy-heavy prompts of benchmarks/data/copy.jsonl; and, in the first
one's tokens, source code of the standard library and the pages in docs/, each cut into a prompt and what
follows it. A line is a kind (copy, code or prose), the number of the prompt's tokens, then all tokens.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import eaglecpp

ROOT = Path(__file__).resolve().parents[1]
COPIES = ROOT / "benchmarks" / "data" / "copy.jsonl"
MODULES = (
    "argparse", "textwrap", "heapq", "csv", "calendar", "shlex", "queue", "string", "cmd", "netrc", "sched",
    "gettext",
)  # fmt: skip
N_PAGES = 10
N_MOST = 512  # tokens of a file's prompt, and of what follows


def answers(engine: eaglecpp.Engine, n_tokens: int) -> Iterator[tuple[str, list[int], list[int]]]:
    for line in COPIES.read_text(encoding="utf-8").splitlines():
        prompt = engine.tokenize(json.loads(line)["prompt"])
        answer = engine.generate(prompt, max_tokens=n_tokens, temperature=0.0).tokens
        if len(answer) > 1:
            yield "copy", prompt, answer


def files(engine: eaglecpp.Engine) -> Iterator[tuple[str, list[int], list[int]]]:
    modules = [Path(sysconfig.get_path("stdlib"), f"{name}.py") for name in MODULES]
    pages = sorted((ROOT / "docs").glob("*.md"))[:N_PAGES]
    for kind, paths in (("code", modules), ("prose", pages)):
        for path in paths:
            tokens = engine.tokenize(path.read_text(encoding="utf-8")[:12000])
            n = min(N_MOST, len(tokens) // 2)
            yield kind, tokens[:n], tokens[n : n + N_MOST]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=320)
    args = parser.parse_args()
    with args.out.open("w", encoding="utf-8") as out:
        for i, target in enumerate(args.targets):
            with eaglecpp.Engine.open(target, "text", n_ctx=2048) as engine:
                texts = [*answers(engine, args.tokens), *(files(engine) if i == 0 else ())]
                for kind, prompt, answer in texts:
                    print(kind, len(prompt), *prompt, *answer, file=out)


if __name__ == "__main__":
    main()
