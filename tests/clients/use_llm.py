# SPDX-License-Identifier: MIT
"""`llm` with its plugin llm-llama-cpp, which makes its own `llama_cpp.Llama`."""

from __future__ import annotations

import os
import tempfile

from common import MODEL, done, take_its_place

take_its_place()
os.environ["LLM_USER_PATH"] = tempfile.mkdtemp()

import llm  # noqa: E402

model = llm.get_model("gguf")
text = model.prompt("Once upon a time", path=MODEL, n_ctx=512, max_tokens=12).text()
assert text.strip(), text
done("the model `gguf`: prompt")
