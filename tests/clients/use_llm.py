# SPDX-License-Identifier: MIT
"""`llm` with its plugin llm-llama-cpp, which makes its own `llama_cpp.Llama`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from common import MODEL, done, take_its_place

take_its_place()
user = Path(tempfile.mkdtemp())
os.environ["LLM_USER_PATH"] = str(user)
(user / "llama-cpp").mkdir()
(user / "llama-cpp" / "models.json").write_text("{}")  # without which the plugin registers nothing

import llm  # noqa: E402

model = llm.get_model("gguf")
text = model.prompt("Once upon a time", path=MODEL, n_ctx=512, max_tokens=12, no_gpu=True).text()
assert text.strip(), text
done("the model `gguf`: prompt")
