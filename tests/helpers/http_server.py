# SPDX-License-Identifier: MIT
"""A real server on the loopback interface, in a thread of the test, and requests to it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import requests

from eaglecpp.modelfile import Modelfile
from eaglecpp.references import ModelName
from eaglecpp.server.app import make_app
from eaglecpp.server.config import ServerConfig
from eaglecpp.server.run import Runner, bind
from eaglecpp.store import Stores
from eaglecpp.store.create import create_model

PAIR = Path(__file__).parents[2] / "examples" / "demo_model" / "pair"
TARGET, DRAFT = PAIR / "demo-target.gguf", PAIR / "demo-draft.gguf"
MODEL = "demo"
QUESTION = "What does os.path.join do?"
EXPECTED = "Join two or more pathname components"
"""The demo model's answer to QUESTION."""
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Parameters of a tool."""
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather somewhere", "parameters": CITY},
}
"""A tool."""
THOUGHT = 'root ::= "<think>ab cd</think>ef gh"'
"""A grammar for an answer with a thought."""
FAST = {"n_ctx": 512, "n_threads": 1, "exact": "off", "planner_cache": False}


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.02)


def store(name: str, rest: str = "", files: str = f"FROM {TARGET}") -> None:
    """Stores a model on the server, by its Modelfile."""
    create_model(Stores.open(), ModelName.parse(name), Modelfile.from_text(f"{files}\n{rest}"), Path())


class TestServer:
    """`with TestServer(...)`: serves the demo pair under the name "demo", or the given files."""

    __test__ = False

    def __init__(self, files: Mapping[str, Path] | None = None, preload: str = "", **config: Any) -> None:
        options = {"draft": str(DRAFT), "n_parallel": 2, "engine": FAST, "keep_alive_s": -1.0, "grace_s": 2.0}
        self.config = ServerConfig(**(options | config))
        self.listener = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.app = make_app(self.config, {MODEL: TARGET} if files is None else files)
        self.server = Runner(self.app, preload)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})

    def __enter__(self) -> Self:
        self.thread.start()
        while not self.server.started or self.app.server.loads:
            if not self.thread.is_alive():
                raise RuntimeError("the server did not start") from self.server.failure
            self.thread.join(0.02)
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=120, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return requests.post(self.url + path, data=data, timeout=120, **options)

    def connect(self, data: bytes = b"") -> socket.socket:
        """Opens a connection to the server and sends these bytes."""
        connection = socket.create_connection(self.listener.getsockname(), timeout=60)
        connection.sendall(data)
        return connection

    def call(self, path: str, body: Any, status: int = 200) -> Any:
        """Posts a request, checks the status, and returns the JSON of the answer."""
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def delete(self, model: str) -> None:
        """Deletes a model from the store."""
        answer = requests.delete(f"{self.url}/api/delete", json={"model": model}, timeout=120)
        assert answer.status_code == 200, answer.text

    def lines(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """Yields the lines of a streamed answer of Ollama's API."""
        with self.post(path, body, stream=True) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            for line in answer.iter_lines():
                yield json.loads(line)

    def events(self, path: str, body: Any) -> Iterator[Any]:
        """Yields the server-sent events of an answer. With OpenAI's API, the last event is the text
        [DONE].
        """
        with self.post(path, {**body, "stream": True}, stream=True) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:]) if line != b"data: [DONE]" else "[DONE]"

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over its labels."""
        values = [
            line.rsplit(" ", 1) for line in self.get("/metrics").text.splitlines() if line.startswith(name)
        ]
        return sum(float(value) for key, value in values if key.partition("{")[0] == name)
