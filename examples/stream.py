# SPDX-License-Identifier: MIT
"""Streams a completion and counts the tokens that the drafter guessed.

python stream.py TARGET.gguf DRAFT.gguf [PROMPT]
"""

from __future__ import annotations

import sys

import eaglecpp


def main() -> None:
    target, draft, *rest = sys.argv[1:]
    prompt = rest[0] if rest else "def main():"
    n_tokens = n_guessed = 0
    with (
        eaglecpp.Engine.open(target, draft, n_ctx=512, strategy="chain:5") as engine,
        engine.stream(prompt, max_tokens=64, temperature=0.8, seed=1) as stream,
    ):
        for chunk in stream:  # each round gives one chunk; the loop may end early
            print(chunk.text, end="", flush=True)
            n_tokens += len(chunk.tokens)
            n_guessed += sum(chunk.accepted)
    print(f"\n{n_guessed} of {n_tokens} tokens were proposed by the drafter", file=sys.stderr)


if __name__ == "__main__":
    main()
