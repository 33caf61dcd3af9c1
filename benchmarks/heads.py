# SPDX-License-Identifier: MIT
"""Does a target's own head for further tokens (MTP) draft here what it drafts in llama.cpp?

    python benchmarks/heads.py --llama-server PATH

On the tiny random models of the tests, whose heads are right now and then: per kind and depth, the drafts and
how many of them were accepted, here and by llama-server's `draft-mtp`, and whether both texts are those of
plain decoding. Greedy, four prompts, 100 tokens each. No speeds: the models are too small.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llama_server import LlamaServer

import eaglecpp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from helpers.tiny import prompt_ids
from helpers.tiny_arch import make_head_file, make_with_assistant, make_with_head

N_TOKENS = 100
PROMPTS = [prompt_ids(30 + i, seed=i) for i in range(4)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-server", type=Path, required=True)
    server = parser.parse_args().llama_server
    print("| heads | depth | accepted of drafted, here | llama.cpp | other texts, here | llama.cpp |")
    print("| --- | --- | --- | --- | --- | --- |")
    n_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for architecture, target, draft, depths in pairs(Path(folder)):
            plain, *_ = ours(target, draft, 0)
            for depth in depths:
                found = ours(target, draft, depth), theirs(server, target, draft, depth)
                counts = [f"{accepted} of {drafted}" for _, drafted, accepted in found]
                other = [sum(a != b for a, b in zip(texts, plain, strict=True)) for texts, _, _ in found]
                print(f"| {architecture} | {depth} | {counts[0]} | {counts[1]} | {other[0]} | {other[1]} |")
                n_wrong += other[0]
    return int(n_wrong > 0)


def pairs(folder: Path) -> Iterator[tuple[str, Path, Path, tuple[int, ...]]]:
    """What drafts, the target, the file of its heads, and how many tokens ahead."""
    for architecture in ("glm4moe", "qwen35"):
        target = make_with_head(folder, architecture)
        yield architecture, target, target, (1, 2, 3, 4)
    target = make_with_head(folder, "hy_v3")
    yield "hy_v3, two heads", target, target, (1, 2)
    yield "hy_v3, in their own file", target, make_head_file(folder, "hy_v3"), (1, 2)
    yield "gemma4, its assistant", *make_with_assistant(folder), (1, 2, 3, 4)


def ours(target: Path, draft: Path, depth: int) -> tuple[list[list[int]], int, int]:
    """Texts, drafted and accepted tokens; depth 0: plain."""
    texts, n_drafted, n_accepted = [], 0, 0
    strategy = f"chain:{depth}" if depth else "off"
    with eaglecpp.Engine.open(
        target, draft=draft if depth else None, strategy=strategy, n_ctx=512, n_threads=1, planner_cache=False
    ) as engine:
        for prompt in PROMPTS:
            engine.clear()
            made = engine.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True, temperature=0.0)
            texts.append(list(made.tokens))
            n_drafted += made.timings.draft_n
            n_accepted += made.timings.draft_n_accepted
    return texts, n_drafted, n_accepted


def theirs(server: Path, target: Path, draft: Path, depth: int) -> tuple[list[list[int]], int, int]:
    """As `ours`, by llama-server."""
    texts, n_drafted, n_accepted = [], 0, 0
    with LlamaServer(
        server, target, draft=draft, kind="draft-mtp", n_max=depth, n_ctx=512, n_threads=1
    ) as running:
        for prompt in PROMPTS:
            answer = running.complete(prompt, N_TOKENS)
            texts.append(answer.tokens)
            n_drafted += int(answer.timings.get("draft_n", 0))
            n_accepted += int(answer.timings.get("draft_n_accepted", 0))
    return texts, n_drafted, n_accepted


if __name__ == "__main__":
    sys.exit(main())
