# SPDX-License-Identifier: MIT
"""Tests guidance, which takes an opened model, checks that the model is a `llama_cpp.Llama`, and drives the
model's context itself.
"""

from __future__ import annotations

from common import done, open_model
from guidance import gen, models, select

llm = open_model()
state = models.LlamaCpp(llm, echo=False)
state += "Once upon a time" + gen("text", max_tokens=6) + " yes or no: " + select(["yes", "no"], name="pick")
assert state["pick"] in ("yes", "no") and state["text"]
done("models.LlamaCpp: gen, select; guidance decodes on a llama_cpp context, without drafts")
