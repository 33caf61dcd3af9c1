# SPDX-License-Identifier: MIT
"""Tests llama_cpp's own server with the real openai client: answers, streams, cancelled streams, parallel
requests.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from common import MODEL, done, take_its_place

take_its_place()

import pytest  # noqa: E402
import uvicorn  # noqa: E402
from llama_cpp.server.app import create_app  # noqa: E402
from llama_cpp.server.settings import ModelSettings, ServerSettings  # noqa: E402
from openai import BadRequestError, OpenAI  # noqa: E402

PORT = 18431
app = create_app(
    server_settings=ServerSettings(host="127.0.0.1", port=PORT),
    model_settings=[ModelSettings(model=MODEL, model_alias="m", n_ctx=1024, verbose=False)],
)
server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=PORT, log_level="warning"))
thread = threading.Thread(target=server.run, daemon=True)
thread.start()
while not server.started:
    time.sleep(0.05)
client = OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="x", timeout=120, max_retries=0)
ASK = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "temperature": 0.0}


def answer() -> str:
    return str(client.chat.completions.create(**ASK).choices[0].message.content)


first = answer()
assert [model.id for model in client.models.list()] == ["m"]
pieces = [
    c.choices[0].delta.content or "" for c in client.chat.completions.create(**ASK, stream=True) if c.choices
]
assert "".join(pieces) == first, (pieces, first)
whole = client.completions.create(model="m", prompt="Once", max_tokens=8, temperature=0.0, logprobs=2)
assert whole.usage.completion_tokens <= 8 and whole.choices[0].logprobs is not None
for _ in range(3):
    stream = client.chat.completions.create(**{**ASK, "max_tokens": 200}, stream=True)
    next(iter(stream))
    stream.close()
assert answer() == first, "cancelled streams do not change later answers"
with ThreadPoolExecutor(4) as pool:
    assert set(pool.map(lambda _: answer(), range(4))) == {first}, "concurrent requests get the same answer"
with pytest.raises(BadRequestError) as raised:
    client.completions.create(model="m", prompt="word " * 3000, max_tokens=4)
assert raised.value.code == "context_length_exceeded", raised.value
server.should_exit = True
thread.join(30)
done("chat, stream, completion, 3 streams cut off, 4 at once, context overflow")
