# SPDX-License-Identifier: MIT
"""Uses `Llama`'s results with their types. `tests/run.py types` type-checks this file, but no program runs
it.
"""

from __future__ import annotations

from typing import Any, assert_type

from eaglecpp import Llama

llm = Llama("target.gguf", draft_model="draft.gguf")
made = llm("def main():", max_tokens=8)
assert_type(made["choices"][0]["text"], str)
assert_type(made["timings"], dict[str, Any])
for part in llm.create_completion("def", stream=True, top_k=3):
    assert_type(part["choices"][0]["text"], str)
said = llm.create_chat_completion([{"role": "user", "content": "Hi"}], temperature=0.0)
assert_type(said["choices"][0]["message"]["content"], str | None)
for piece in llm.create_chat_completion([{"role": "user", "content": "Hi"}], stream=True):
    assert_type(piece["choices"][0]["delta"].get("content"), str | None)
assert_type(llm.embed("Hi", return_count=True), tuple[Any, int])
assert_type(Llama.from_pretrained("owner/model", "*.gguf"), Llama)
