# SPDX-License-Identifier: MIT
"""Uses code for llama_cpp.Llama with one changed import and a drafter.

python llama_dropin.py TARGET.gguf DRAFT.gguf
"""

from __future__ import annotations

import sys

from eaglecpp import Llama  # before: from llama_cpp import Llama


def main() -> None:
    target, draft = sys.argv[1:]
    llm = Llama(model_path=target, draft_model=draft, n_ctx=512)

    completion = llm("def main():", max_tokens=32, temperature=0.0, stop=["\n\n"])
    print(completion["choices"][0]["text"])

    messages = [{"role": "user", "content": "Write a line of Python."}]
    timings: dict[str, float] = {}
    for chunk in llm.create_chat_completion(messages, max_tokens=32, temperature=0.0, stream=True):
        print(chunk["choices"][0]["delta"].get("content", ""), end="", flush=True)
        timings = chunk.get("timings", timings)
    print(f"\n{timings['acceptance_length']:.2f} tokens per round", file=sys.stderr)


if __name__ == "__main__":
    main()
