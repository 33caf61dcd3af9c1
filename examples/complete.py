# SPDX-License-Identifier: MIT
"""Completes a prompt without and with a drafter, compares the tokens and prints both speeds.

python complete.py TARGET.gguf DRAFT.gguf [PROMPT]
"""

from __future__ import annotations

import sys

import eaglecpp


def main() -> None:
    target, draft, *rest = sys.argv[1:]
    prompt = rest[0] if rest else "def main():"
    with eaglecpp.Engine.open(target, draft, n_ctx=512, max_tokens=64, temperature=0.0) as engine:
        plain = engine.generate(prompt, strategy="off")
        engine.clear()  # without this call, the second run would reuse the prompt
        drafted = engine.generate(prompt, strategy="chain:3")

    print(prompt + drafted.text)
    assert drafted.tokens == plain.tokens
    for name, result in (("plain", plain), ("drafted", drafted)):
        timings = result.timings
        print(
            f"{name:<8}{timings.predicted_per_second:8.1f} tokens/s, "
            f"{timings.acceptance_length:.2f} tokens per round",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
