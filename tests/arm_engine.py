# SPDX-License-Identifier: MIT
"""Compares text with and without drafting on 64-bit ARM (`tests/run.py arm`). The number of accepted drafts
shows that the arithmetic matches that of other machines. The step `neon` tests the arithmetic directly.

    python3 arm_engine.py FOLDER KERNELS

FOLDER contains the demo pair. KERNELS is `neon`, `neon_i8mm` or `off`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import eaglecpp
from eaglecpp.lowlevel import system_info

KNOWN = {
    "What does os.path.join do?": "Join two or more pathname components",
    "What is len?": "Return the number of items in a container.",
}
STRATEGIES = ("chain:4", "tree:k=3,depth=4,nodes=8", "auto")


def same_text(folder: Path, kernels: str) -> None:
    # ggml's own kernels compute a single row differently from a row in a batch. So only exact batch sizes are
    # allowed.
    exact = "on" if kernels == "off" else "auto"
    pair = (folder / "demo-target.gguf", folder / "demo-draft.gguf")
    options = {"n_ctx": 512, "kernels": kernels, "exact": exact, "planner_cache": False}
    with eaglecpp.Engine.open(*pair, **options) as engine:
        n_tokens = n_accepted = 0
        for question, answer in KNOWN.items():
            # The demo model is so confident that only a high temperature changes its choices.
            for temperature in (0.0, 4.0):
                sampling = {"temperature": temperature, "top_p": 1.0, "min_p": 0.0, "seed": 1}
                asked = [{"role": "user", "content": question}]
                plain, *drafted = (
                    engine.chat(asked, max_tokens=32, strategy=strategy, **sampling)
                    for strategy in ("off", *STRATEGIES)
                )
                assert temperature > 0 or answer in plain.text, plain.text
                for strategy, it in zip(STRATEGIES, drafted, strict=True):
                    assert it.tokens == plain.tokens, (strategy, it.text, plain.text)
                    assert it.timings.exact, strategy
                    n_tokens += len(it.tokens)
                    n_accepted += it.timings.draft_n_accepted
        assert n_accepted > n_tokens / 4, (n_accepted, n_tokens)
        print(f"same text: {n_tokens} tokens, {n_accepted} of them drafted", flush=True)


def main() -> None:
    folder, wanted = Path(sys.argv[1]), sys.argv[2]
    found = system_info()["kernels"]
    if wanted != "off":
        assert found["active"] and found["table"] == wanted, found
    kernels = "off" if wanted == "off" else "auto"
    same_text(folder, kernels)


if __name__ == "__main__":
    assert os.uname().machine == "aarch64", os.uname()
    main()
