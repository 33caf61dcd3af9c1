# SPDX-License-Identifier: MIT
"""Tests outlines, which takes an opened model, and constrains the model's answers with a logits processor."""

from __future__ import annotations

import re
from typing import Literal

import outlines
from common import done, open_model
from outlines.types import Regex

llm = open_model()
model = outlines.from_llamacpp(llm)
text = model("How many?", Regex(r"[0-9]{3}-[0-9]{2}"), max_tokens=20)
assert re.fullmatch(r"[0-9]{3}-[0-9]{2}", text), text
choice = model("Yes or no?", Literal["yes", "no"], max_tokens=8)
assert choice in ("yes", "no"), choice
assert model("Once", max_tokens=6)
done("from_llamacpp: a regex, a choice, free text; constrained text is decoded without drafts")
