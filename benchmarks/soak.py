# SPDX-License-Identifier: MIT
"""Runs `eaglecpp serve` under mixed load for a long time: checks answers and memory.

    python benchmarks/soak.py --target T.gguf --draft D.gguf --minutes 60

Clients of every kind run at the same time:

- more conversations than slots, with several turns each
- questions in all APIs, some sampled with a seed, with a schema, or about images
- texts to embed
- clients that disconnect before or during an answer
- invalid bodies: not JSON, not an object, wrong types, or too long
- invalid images, prompts longer than the context, unknown paths, and requests from pages of other sites

--mmproj names the projector for images. Without it, a projector with random weights is used. First, the idle
server answers each question. Under load, every exact answer must be the same as the idle server's answer. The
script prints the requests by kind and ending, and the wrong answers. It also prints the server's memory,
threads and open files over time, and whether the server is idle at the end. It runs only on Linux, because it
reads /proc, and it uses the tests' sources.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import itertools
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import arguments, facts, note, table, write_json
from gguf import GGUFReader
from llama_server import our_server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.tiny_projector import make_image, make_projector

MODEL = "target"
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Count from one to twenty.",
    "Explain in two sentences what a prime number is.",
    "Name three colours and something of each.",
    "What does a lighthouse keeper do?",
)
PICTURES = tuple(base64.b64encode(make_image(i)).decode() for i in range(4))
SAME = 0.9999
"""Minimum cosine of two vectors of the same text. The vectors may differ, because sums are rounded
differently in batches of other sizes.
"""
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"]}


@dataclass
class Tally:
    """Results of all clients."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    inexact: int = 0
    reused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, how: str) -> None:
        with self.lock:
            self.ended[kind, how] += 1

    def note_wrong(self, text: str) -> None:
        with self.lock:
            self.wrong.append(text)
        note(f"WRONG: {text}")


class Clients:
    """Clients of the server. Each method is one kind of client; `check` compares answers."""

    def __init__(self, port: int, tally: Tally) -> None:
        self.port = port
        self.tally = tally
        self.known: dict[str, str] = {}
        self.vectors: dict[str, list[float]] = {}
        self.numbers = itertools.count(len(PICTURES))

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str] | None = None,
                ) -> tuple[int, bytes]:  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, data = self.request("POST", path, json.dumps({"model": MODEL, **body}).encode())
        payload: dict[str, Any] = json.loads(data)
        if status != 200:
            raise RuntimeError(f"{path} answered {status}: {data[:200]!r}")
        return payload

    def check(self, key: str, text: str, timings: dict[str, Any]) -> None:
        """Compares an answer with the first answer of the same key."""
        if not timings["exact"]:
            with self.tally.lock:
                self.tally.inexact += 1
            return
        if text != self.known.setdefault(key, text):
            self.tally.note_wrong(f"{key}: {text!r} for {self.known[key]!r}")

    # Requests that the server answers

    def question(self, rng: random.Random) -> None:
        number, seed = rng.randrange(len(QUESTIONS)), rng.randrange(3)
        options = {"temperature": 0.8 if seed else 0.0, "seed": seed, "num_predict": 48}
        body = {
            "messages": [{"role": "user", "content": QUESTIONS[number]}],
            "options": options,
            "stream": False,
        }
        payload = self.ask("/api/chat", body)
        self.check(f"question {number} seed {seed}", payload["message"]["content"], payload["timings"])

    def openai(self, rng: random.Random) -> None:
        number = rng.randrange(len(QUESTIONS))
        body = {
            "model": rng.choice([MODEL, "gpt-4o"]),  # a server of one file answers to any model name
            "messages": [{"role": "user", "content": QUESTIONS[number]}],
            "temperature": 0,
            "max_tokens": 48,
        }
        payload = self.ask("/v1/chat/completions", body)
        text = payload["choices"][0]["message"]["content"]
        self.check(f"question {number} seed 0", text, payload["timings"])

    def stream(self, rng: random.Random) -> None:
        """Reads a stream slowly."""
        number = rng.randrange(len(QUESTIONS))
        body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTIONS[number]}],
                "options": {"temperature": 0, "num_predict": 48}}  # fmt: skip
        text, last = "", {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/api/chat", json.dumps(body))
        for line in connection.getresponse():
            last = json.loads(line)
            text += last["message"]["content"]
            time.sleep(0.01)
        connection.close()
        self.check(f"question {number} seed 0", text, last["timings"])

    def schema(self, rng: random.Random) -> None:
        body = {"prompt": "A number:", "format": SCHEMA, "options": {"temperature": 0}, "stream": False}
        payload = self.ask("/api/generate", body)
        if json.loads(payload["response"])["n"] not in (1, 2, 3):
            self.tally.note_wrong(f"schema: {payload['response']!r}")

    def image(self, rng: random.Random) -> None:
        """Asks about images. One of a few known images is used to compare answers, or three new images are
        used to evict known images.
        """
        number, is_new = rng.randrange(len(PICTURES)), rng.random() < 0.3
        pictures = [PICTURES[number]]
        if is_new:
            pictures = [base64.b64encode(make_image(next(self.numbers))).decode() for _ in range(3)]
        text, is_ollama = "Describe the picture.", rng.random() < 0.5
        if is_ollama:
            options = {"temperature": 0, "num_predict": 32}
            message: dict[str, Any] = {"role": "user", "content": text, "images": pictures}
            payload = self.ask("/api/chat", {"messages": [message], "options": options, "stream": False})
            said = payload["message"]["content"]
        else:
            urls = [{"url": f"data:image/png;base64,{picture}"} for picture in pictures]
            content = [{"type": "image_url", "image_url": url} for url in urls]
            message = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
            body = {"messages": [message], "temperature": 0, "max_tokens": 32}
            payload = self.ask("/v1/chat/completions", body)
            said = payload["choices"][0]["message"]["content"]
        if not is_new:
            self.check(f"picture {number} {is_ollama}", said, payload["timings"])

    def embeddings(self, rng: random.Random) -> None:
        """Embeds one text or several, in Ollama's or OpenAI's API."""
        texts = rng.sample(QUESTIONS, rng.randrange(1, len(QUESTIONS)))
        if rng.random() < 0.5:
            vectors = self.ask("/api/embed", {"input": texts})["embeddings"]
        else:
            vectors = [row["embedding"] for row in self.ask("/v1/embeddings", {"input": texts})["data"]]
        for text, vector in zip(texts, vectors, strict=True):
            known = self.vectors.setdefault(text, vector)
            cosine = np.dot(known, vector) / (np.linalg.norm(known) * np.linalg.norm(vector))
            if not cosine >= SAME:
                self.tally.note_wrong(f"embedding of {text!r}: cosine {cosine}")

    def conversation(self, rng: random.Random) -> None:
        """Holds a conversation of three turns. Between the turns, other clients use the conversation's
        slot.
        """
        number, messages = rng.randrange(len(QUESTIONS)), []
        for turn in range(3):
            messages.append({"role": "user", "content": QUESTIONS[(number + turn) % len(QUESTIONS)]})
            body = {"messages": messages, "options": {"temperature": 0, "num_predict": 32}, "stream": False}
            payload = self.ask("/api/chat", body)
            self.check(json.dumps(messages), payload["message"]["content"], payload["timings"])
            messages.append(payload["message"])
            with self.tally.lock:
                self.tally.reused += payload["timings"]["reused_n"]
            time.sleep(rng.random())

    # Requests that the server refuses

    def leaves(self, rng: random.Random) -> None:
        """Asks for a long answer and closes the connection at a random moment."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell me a long story."}],
            "options": {"num_predict": 400, "ignore_eos": True},
            "stream": rng.random() < 0.7,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/api/chat", json.dumps(body))
        time.sleep(rng.random() * 1.5)
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

    def bad_body(self, rng: random.Random) -> None:
        good = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "a"}]}).encode()
        body = rng.choice([
            rng.randbytes(rng.randrange(1, 2000)), good[: rng.randrange(1, len(good))], b"[]", b"null", b"",
            b'{"model": 5}', b'{"model": "target", "messages": "a"}', b"[" * 100_000,
            b'{"model": "target", "messages": [{"role": "user", "content": "a"}], "options": {"top_k": "x"}}',
            b'{"model": "target", "messages": [{"role": "user", "content": "a"}], "format": {"type": 7}}',
            b'{"model": "target", "messages": [{"role": 1, "content": {}}], "temperature": 1e999, "n": 5}',
        ])  # fmt: skip
        paths = ["/api/chat", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
        path = rng.choice(paths if b"messages" in body else [*paths, "/api/generate"])
        # OpenAI's API has no field `format`, so it ignores this field.
        self.expect(path, body, range(400, 500), or_ok=b'"format"' in body)

    def bad_image(self, rng: random.Random) -> None:
        picture = base64.b64decode(PICTURES[0])
        data = rng.choice([rng.randbytes(200), picture[: rng.randrange(1, len(picture) // 2)], b""])
        message = {"role": "user", "content": "a", "images": [base64.b64encode(data).decode()]}
        body = {"model": MODEL, "messages": [message], "options": {"num_predict": 4}}
        self.expect("/api/chat", json.dumps(body).encode(), range(400, 401))

    def too_long(self, rng: random.Random) -> None:
        text = "word " * rng.choice([3000, 30_000, 300_000])
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        self.expect("/v1/chat/completions", json.dumps(body).encode(), range(400, 401))

    def too_large(self, rng: random.Random) -> None:
        self.expect("/api/chat", b" " * (5 << 20), range(413, 414))

    def no_path(self, rng: random.Random) -> None:
        self.expect(f"/v1/nothing{rng.random()}", b"{}", range(404, 405))

    def other_site(self, rng: random.Random) -> None:
        status, _ = self.request("POST", "/api/chat", b"{}", {"Origin": "http://evil.example"})
        if status != 403:
            self.tally.note_wrong(f"another site's page was answered {status}")

    def expect(self, path: str, body: bytes, statuses: range, or_ok: bool = False) -> None:
        try:
            status, data = self.request("POST", path, body)
        except (ConnectionError, http.client.HTTPException):
            if len(body) < 1 << 20:  # a server may close the connection before it has received a longer body
                raise
            return
        if status not in statuses and not (or_ok and status == 200):
            self.tally.note_wrong(f"{path} {body[:80]!r}: {status} {data[:200]!r}")


KINDS = {"question": 6, "openai": 4, "stream": 3, "schema": 1, "conversation": 3, "image": 4, "embeddings": 4,
         "leaves": 5, "bad_body": 6, "bad_image": 2, "too_long": 1, "too_large": 1, "no_path": 2,
         "other_site": 1}  # fmt: skip


def client(clients: Clients, seed: int, until: float) -> None:
    rng = random.Random(seed)
    names = list(KINDS)
    while time.monotonic() < until:
        name = rng.choices(names, list(KINDS.values()))[0]
        one: Callable[[random.Random], None] = getattr(clients, name)
        try:
            one(rng)
            clients.tally.add(name, "as expected")
        except Exception as error:
            clients.tally.add(name, "failed")
            clients.tally.note_wrong(f"{name}: {error!r}")


def usage(pid: int) -> dict[str, int]:
    """Returns MiB of memory, threads and open files of a process, and MiB of memory of its child processes
    (one child process reads images).
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    payload = {
        line.split(":")[0]: line.split()[1]
        for line in lines
        if line.startswith(("VmRSS", "RssAnon", "Threads"))
    }
    return {
        "rss": int(payload["VmRSS"]) // 1024,
        "anonymous": int(payload["RssAnon"]) // 1024,
        "threads": int(payload["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "children": sum(child.memory_info().rss for child in psutil.Process(pid).children()) // (1 << 20),
    }


def width_of(target: Path) -> int:
    fields = GGUFReader(target).fields
    return int(next(of for name, of in fields.items() if name.endswith(".embedding_length")).contents())


@contextlib.contextmanager
def serving(args: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yields a server's port and process id."""
    with tempfile.TemporaryDirectory() as folder:
        draft = ["--draft", args.draft] if args.draft else []
        projector = args.mmproj or make_projector(Path(folder, "mmproj.gguf"), width_of(args.target))
        sizes = ("-np", args.places, "-c", args.n_ctx, "-t", args.threads)
        limits = ("--max-body", "4M", "--cache-ram", args.cache_ram)
        with our_server(args.target, *draft, "--mmproj", projector, *sizes, *limits) as found:
            yield found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--mmproj", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--places", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-ctx", type=int, default=1024)
    parser.add_argument("--cache-ram", default="64M")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tally, samples = Tally(), []
    with serving(args) as (port, pid):
        clients = Clients(port, tally)
        for seed in range(len(QUESTIONS)):  # collects the answers of the idle server
            for _ in range(2):
                clients.openai(random.Random(seed))
                clients.question(random.Random(seed))
                clients.image(random.Random(seed))
                clients.embeddings(random.Random(seed))
        started = time.monotonic()
        until = started + 60 * args.minutes
        threads = [threading.Thread(target=client, args=(clients, i, until)) for i in range(args.clients)]
        for thread in threads:
            thread.start()
        while alive := [thread for thread in threads if thread.is_alive()]:
            samples.append({"minute": (time.monotonic() - started) / 60, **usage(pid)})
            alive[0].join(max(1.0, 60 * args.minutes / 20))
        for thread in threads:
            thread.join()
        for _ in range(100):
            health = json.loads(clients.request("GET", "/health", None)[1])
            if health["running"] == health["waiting"] == 0:
                break
            time.sleep(0.1)
        samples.append({"minute": (time.monotonic() - started) / 60, **usage(pid)})
        metrics = clients.request("GET", "/metrics", None)[1].decode()
    rows = [[kind, how, n] for (kind, how), n in sorted(tally.ended.items())]
    print(table(["client", "ended", "number"], rows))
    print()
    columns = ("rss", "anonymous", "children", "threads", "files")
    print(
        table(
            ["minute", "MiB", "of these anonymous", "reader of images", "threads", "files"],
            [[f"{sample['minute']:.1f}", *(sample[name] for name in columns)] for sample in samples],
        )
    )
    print(f"\nwrong: {len(tally.wrong)}; inexact answers, not compared: {tally.inexact}")
    print(f"at the end: {health['running']} running, {health['waiting']} waiting")
    print(f"prompt tokens that conversations found: {tally.reused}")
    n_5xx = sum('status="5' in line for line in metrics.splitlines())
    models = {"target": args.target} | ({"draft": args.draft} if args.draft else {})
    result = facts(models, minutes=args.minutes, clients=args.clients, places=args.places)
    result |= {"samples": samples, "wrong": tally.wrong, "inexact": tally.inexact, "health": health,
               "ended": {f"{kind} {how}": n for (kind, how), n in tally.ended.items()}}  # fmt: skip
    write_json(args.json, result)
    if tally.wrong or n_5xx or health["running"] or health["waiting"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
