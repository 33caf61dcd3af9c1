# SPDX-License-Identifier: MIT
"""Sends hostile bodies to the endpoints of a running server with the demo pair.

    python tests/fuzz/fuzz_requests.py [--seconds S] [--seed N] [--body FILE]

The server is a separate process. While the program sends bodies, other clients request /health and read a
stream. The server's process must survive, /health must answer within a time limit, and the stream must
continue. Every body must get an answer in the form of its API within a time limit, and never status 500. A
body that breaks one of these rules is written to `request-failed-*.json`, which `--body` sends again. The
printed seed reproduces the bodies.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.bodies import BODIES, OPENAI, USUAL
from helpers.http_server import DRAFT, MODEL, TARGET
from helpers.serve_process import QUICK, Bystanders, free_port, start_server

PATIENCE_S = {
    "health": 5.0,
    "stream": 15.0,
}  # maximum seconds for an answer to /health, and between two pieces of the stream
# Maximum seconds for the answer to a hostile body. A template may compute for 10 s, and other requests wait
# for a slot.
ANSWER_S = 60.0
GOOD = (200, 400, 404, 413, 422, 503, 504)

Maker = Callable[[random.Random], Any]


TEXTS = ["a", " ", "\n", "<|im_end|>", "<|im_start|>", "'s", "word ", "é", "\U0001f642", "\0", "{", '"', "\\"]
NUMBERS = [0, 1, -1, 2, 5, 40, 1000, 10**6, 10**9, 2**31, 2**32, -(2**31), 2**63, 10**30, True]
NUMBERS += [0.5, -0.1, 1e-9, 1e30, 1e308, float("inf"), float("nan")]


def text(rng: random.Random) -> str:
    """Returns a random text of any size, usually a short one."""
    n = rng.choice((0, 1, 3, 40, 40, 2_000, 200_000))
    if rng.random() < 0.5:
        return rng.choice(TEXTS) * n
    return "".join(rng.choices(TEXTS, k=min(n, 5_000)))


def number(rng: random.Random) -> Any:
    return rng.choice(NUMBERS)


def junk(rng: random.Random, depth: int = 0) -> Any:
    """Returns any JSON value."""
    kind = rng.randrange(9 if depth < 5 else 6)
    if kind < 2:
        return number(rng)
    if kind < 4:
        return text(rng)
    if kind == 4:
        return None
    if kind == 5:
        return rng.choice(([], {}, "", False, "\ud800"))
    if kind == 6:
        return [junk(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {text(rng)[:20]: junk(rng, depth + 1) for _ in range(rng.randrange(4))}
    return Nested(rng.choice((10, 200, 5_000, 200_000)), rng.random() < 0.5)


class Nested:
    """Deeply nested brackets, kept as text because json.dumps would recurse too deeply."""

    def __init__(self, depth: int, is_list: bool) -> None:
        self.text = "[" * depth + "]" * depth if is_list else '{"a":' * depth + "1" + "}" * depth


def grammar(rng: random.Random) -> str:
    n = rng.choice((2, 5, 30, 1_000, 100_000, 10**9))
    some, few = min(n, 100_000), min(n, 40)
    chain = "".join(f"r{i} ::= r{i + 1}\n" for i in range(some))
    doubling = "".join(f"x{i} ::= x{i + 1} x{i + 1}\n" for i in range(few))
    return rng.choice(
        [
            f'root ::= "a"{{{n}}}', f'root ::= "a"{{0,{n}}} "b"', 'root ::= "a"{5,2}',
            f'root ::= {"(" * some}"a"{")" * some}', f"root ::= [{'a' * some}]", f'root ::= "{"a" * some}"',
            f'root ::= r0\n{chain}r{some} ::= "a"', f'root ::= x0\n{doubling}x{few} ::= "a"',
            "root ::= " + " | ".join(['"a" root'] * min(n, 200)) + ' | "b"',
            "root ::= root", 'root ::= root "a" | "a"', "root ::= a\na ::= b\nb ::= a",
            "root ::= [^\\x00-\\U0010ffff]", 'root ::= ""', 'root ::= ("a"* "a"*)*',
            "root ::= " + "[a-z]* " * 6, "root ::= ((((a?)?)?)?)*\na ::= [a-z]+",
            "not a grammar", "root", "root ::=", 'root ::= "\\', text(rng),
            'root ::= ("yes" | "no")', 'root ::= [0-9]+ "\\n"',
        ]
    )  # fmt: skip


def schema(rng: random.Random, depth: int = 0) -> Any:
    n = rng.choice((1, 3, 50, 2_000, 300_000, 10**9))

    def inner() -> Any:
        return schema(rng, depth + 1)

    if depth < 4 and rng.random() < 0.4:
        kind = rng.randrange(4)
        if kind == 0:
            return {"type": "array", "items": inner(), rng.choice(("minItems", "maxItems")): n}
        if kind == 1:
            parts = {f"p{i}": inner() for i in range(min(n, 4))}
            return {"type": "object", "properties": parts, "required": ["p0"]}
        if kind == 2:
            return {rng.choice(("anyOf", "oneOf", "allOf")): [inner() for _ in range(min(n, 4))]}
        return {"$defs": {"a": inner()}, "$ref": "#/$defs/a"}
    some = min(n, 20_000)
    deep: Any = {"type": "string"}
    for _ in range(min(n, 300)):
        deep = {"type": "array", "items": deep}
    patterns = (
        f"^a{{1,{n}}}$",
        "^(a|b)*$",
        "(",
        "^" + "(" * some,
        "^[a-z]+$",
        "^(a+)+$",
        "\\d{3}",
        text(rng),
    )
    loop = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/t"}]}
    return rng.choice(
        [
            *({"type": "string", "pattern": pattern} for pattern in patterns[:3]),
            {"type": "string", "pattern": rng.choice(patterns)},
            {"type": "string", rng.choice(("minLength", "maxLength")): n},
            {"type": "integer", "minimum": number(rng), "maximum": number(rng)},
            {"enum": [f"v{i}" for i in range(some)]},
            {"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
            {"$ref": "https://example.com/x.json"},
            {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}, "$defs": {"t": loop}},
            {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(some)}},
            {"const": junk(rng, 3)}, deep, {"type": "object"}, {}, True, junk(rng, 2),
            {"type": rng.choice(("string", "boolean", "nonsense", ["string", "null"], 5))},
        ]
    )  # fmt: skip


def template(rng: random.Random) -> Any:
    n = rng.choice((10, 500, 10**6))
    return rng.choice(
        [
            f"{{% for a in range({n}) %}}" * 2 + "{{ a * a }}" + "{% endfor %}" * 2, f"{{{{ 'a' * {n} }}}}",
            "{{ .Prompt }}", "{{ range .Messages }}{{ .Content }}{{ end }}", "{% for a in", "{{ " * 5000,
            "{{ messages | tojson * 1000000 }}", "{{- range $i, $m := .Messages }}" * 300, text(rng),
        ]
    )  # fmt: skip


SAMPLING = [
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "mirostat", "mirostat_tau", "mirostat_eta", "seed", "xtc_probability", "min_keep",
    "dry_multiplier", "dry_penalty_last_n", "top_n_sigma", "dynatemp_range", "num_predict", "num_ctx",
]  # fmt: skip
OPTIONS = dict.fromkeys(SAMPLING, 1) | {"rng": "llama", "stop": ["x"], "ignore_eos": True, "num_predict": 12,
                                        "dry_sequence_breakers": ["x"]}  # fmt: skip
LLAMA_SERVER = OPENAI | USUAL | {"n_probs": 0, "json_schema": {}, "samplers": ["top_k"], "input_extra": []}
SOUND = [(path, body) for method, path, body in BODIES if method == "POST" and path != "/api/pull"]
SOUND += [(path, LLAMA_SERVER) for path in ("/completion", "/infill", "/tokenize", "/apply-template")]
"""A body for every endpoint that contacts no other host."""
OWN: dict[str, Maker] = {
    "grammar": grammar, "template": template, "format": schema, "schema": schema, "parameters": schema,
    "input_schema": schema, "num_predict": lambda rng: rng.choice((0, 5, 20)),
    "role": lambda rng: rng.choice(("user", "assistant", "system", "tool", "developer", "nobody")),
    "type": lambda rng: rng.choice(("json_schema", "json_object", "text", "image_url", "nonsense", 5)),
}  # fmt: skip


def spoilt(rng: random.Random, name: str, value: Any) -> Any:
    """Changes the value of a field to a value that no ordinary client sends: wrong, huge, or repeated far too
    often.
    """
    many = rng.choice((3, 256, 4096, 300_000))
    inside = bool(value) and rng.random() < 0.8
    if isinstance(value, dict) and inside:
        if rng.random() < 0.2:
            return value | {str(i): number(rng) for i in range(-5, many)} | {" 1": 1, "+1": 3}
        part = rng.choice(sorted(value))
        kept = value if name != "options" else dict.fromkeys(rng.sample(sorted(value), 3), 1)
        return kept | {part: spoilt(rng, part, value[part])}
    if isinstance(value, list) and inside:
        if rng.random() < 0.4:
            return [
                *value * rng.choice((3, 300)),
                *(str(i) if rng.random() < 0.5 else i for i in range(many)),
            ]
        at = rng.randrange(len(value))
        return [*value[:at], spoilt(rng, name, value[at]), *value[at + 1 :]]
    if name in OWN and rng.random() < 0.9:
        return OWN[name](rng)
    return rng.choice((junk, number, text))(rng)


def body(rng: random.Random, model: str) -> tuple[str, bytes]:
    """Returns a random endpoint, and a request body for this endpoint: a valid question with up to three
    invalid fields.
    """
    path, sound = rng.choice(SOUND)
    out = sound | {"stream": rng.random() < 0.3, "max_tokens": 12, "n_predict": 12, "num_predict": 12}
    out["options"] = {"num_predict": 12}
    for name in rng.sample(sorted(out), rng.choice((1, 1, 1, 2, 3))):
        out[name] = spoilt(rng, name, OPTIONS if name == "options" else out[name])
    if path.startswith("/api") and isinstance(out["options"], dict):
        out["options"] = {"num_predict": 12} | out["options"]
    out |= {name: model for name in ("model", "from", "source") if out.get(name) in (MODEL, "nobody")}
    marks: dict[str, str] = {}

    def stand_in(value: Any) -> str:
        if not isinstance(value, Nested):
            raise TypeError(type(value).__name__)
        key = f"@@{len(marks)}@@"
        marks[f'"{key}"'] = value.text
        return key

    written = json.dumps(out, default=stand_in)
    for key, brackets in marks.items():
        written = written.replace(key, brackets)
    data = written.encode()
    return path, data if rng.random() < 0.98 else data[: rng.randrange(len(data))]


class Fault(Exception):
    """A broken guarantee."""


def check_answer(path: str, answer: requests.Response) -> None:
    """Raises Fault if a response does not have the form of the API's answers."""
    if answer.status_code not in GOOD:
        raise Fault(f"status {answer.status_code}: {answer.text[:500]}")
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        rows = [line[6:] for line in answer.content.split(b"\n") if line.startswith(b"data: ")]
        values = [json.loads(row) for row in rows if row != b"[DONE]"]
    elif kind.startswith("application/x-ndjson"):
        values = [json.loads(line) for line in answer.content.splitlines() if line.strip()]
    else:
        whole = json.loads(answer.content)
        # a request with several prompts gets a list of answers
        values = whole if isinstance(whole, list) else [whole]
    if not values or not all(isinstance(value, dict) for value in values):
        raise Fault(f"not an answer: {answer.text[:200]}")
    for value in values:
        reply = value.get("error")
        message = reply.get("message") if isinstance(reply, dict) else reply
        if reply is not None and (not isinstance(message, str) or "internal error" in message):
            raise Fault(f"an error without a text, or an internal error: {value}")
    if answer.status_code != 200 and "error" not in values[0]:
        raise Fault(f"status {answer.status_code} without an error: {values[0]}")


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Starts `eaglecpp serve` with its own store, and yields its address and its process."""
    port = free_port()
    own = {"HOME": str(folder), "EAGLECPP_MODELS": str(folder / "models"), "EAGLECPP_PLANNER_CACHE": "0"}
    options = ("--draft", str(DRAFT), "--max-time", "30s", *QUICK)
    log = folder / "serve.log"
    with log.open("wb") as output:
        try:
            process = start_server(TARGET, port, *options, output=output, environment=os.environ | own)
        except RuntimeError as error:
            sys.exit(f"{error}\n{log.read_text(errors='replace')[-3000:]}")
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--body", type=Path, help="file with a body that an earlier run has stored")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as (url, process):
        model = str(requests.get(f"{url}/v1/models", timeout=5).json()["data"][0]["id"])
        if given.body:
            saved = json.loads(given.body.read_text(encoding="utf-8"))
            bodies = iter([(saved["path"], saved["body"].encode("latin-1"))])
        else:
            end = time.perf_counter() + given.seconds
            bodies = iter(lambda: body(rng, model) if time.perf_counter() < end else None, None)
        fuzz(url, model, process, bodies, given.seed)


def fuzz(url: str, model: str, process: subprocess.Popen[bytes], bodies: Iterator[Any], seed: int) -> None:
    """Sends the bodies. At the first fault, writes the body to a file and exits."""
    statuses: Counter[int] = Counter()
    path, data = "", b""
    with Bystanders(url, model) as others:
        try:
            for path, data in bodies:
                answer = requests.post(url + path, data=data, timeout=ANSWER_S)
                check_answer(path, answer)
                statuses[answer.status_code] += 1
                if others.errors or any(others.longest[who] > PATIENCE_S[who] for who in PATIENCE_S):
                    raise Fault(f"others noticed: {others.errors or others.longest}")
                if process.poll() is not None:
                    raise Fault(f"the server ended with {process.returncode}")
        except (Fault, requests.RequestException, ValueError) as error:
            time.sleep(0.5)
            ended = process.poll()
            state = "the server lives" if ended is None else f"the server ended: {ended}"
            left = Path.cwd() / f"request-failed-{seed}.json"
            left.write_text(json.dumps({"path": path, "body": data.decode("latin-1")}), encoding="utf-8")
            sys.exit(f"seed {seed}, {path}: {error!r}; {state}\nthe body: {left}\n{data[:400]!r}")
    print(f"{sum(statuses.values())} bodies, {dict(statuses)}")
    print("slowest: " + ", ".join(f"{who} {seconds:.2f} s" for who, seconds in others.longest.items()))


if __name__ == "__main__":
    main()
