# SPDX-License-Identifier: MIT
"""Grammars, schemas and tools that once killed a server or blocked it for minutes are sent to a real server.
Meanwhile the server must answer `/health` and another client's stream. It must report the problem to the
sender.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from helpers.http_server import DRAFT, MODEL, TARGET
from helpers.serve_process import QUICK, Bystanders, free_port, start_server

pytestmark = pytest.mark.alone  # measures time

# Longest delay that one request may cause: far above the limit's own 0.1 s on any machine, far below the
# delays before the fix.
PATIENCE_S = 8.0
ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is len?"}],
    "max_tokens": 60,
}


def chain(n: int) -> str:
    return "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(n)) + f'r{n} ::= "a"'


def doubling(n: int) -> str:
    return f'root ::= r0\nr{n} ::= "a"?\n' + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(n))


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def calls(parameters: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


def many(n: int) -> Any:
    return {"type": "object", "properties": {f"p{i}": {} for i in range(n)}}


def deep(n: int) -> Any:
    value: Any = {"type": "null"}
    for _ in range(n):
        value = {"type": "array", "items": value}
    return value


Server = tuple[str, "subprocess.Popen[bytes]", str]  # (address, process, usual answer to the bystander)
PARTS = {"$defs": {"x": {"const": 1}}, "properties": {"x": {"$ref": "#/$defs/x"}}, "required": ["x"]}
HUGE = {"type": "string", "pattern": "^a{1,300000}$"}
# name: (body, allowed statuses, part of the answer)
ATTACKS: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "pattern": (schema(HUGE), (200,), ""),
    "min-length": (schema({"type": "string", "minLength": 10**9}), (200,), ""),
    "above": (schema({"type": "string", "minLength": 10**10}), (400,), "at most 1000000000"),
    "many-properties": (schema(many(2000)), (200,), ""),
    "too-many-properties": (schema(many(3000)), (400,), "at most 3000 schemas"),
    "enum": (schema({"enum": [f"word {i}" for i in range(20_000)]}), (200,), ""),
    "deep": (schema(deep(300)), (400,), "nested more than 100 levels deep"),
    "recursive": (
        schema({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}}),
        (200,),
        "",
    ),
    "parts-of-a-tool": (calls(PARTS), (200,), ""),
    "nowhere": (schema({"$ref": "#/$defs/n"}), (400,), "does not exist"),
    "open": ({"grammar": "root ::= " + "(" * 100_000}, (400,), "at most 64 groups"),
    "long-chain": ({"grammar": chain(100_000)}, (400,), "at most 131072 bytes, found"),
    "backwards": ({"grammar": 'root ::= "a"{5,2}'}, (400,), "minimum of 5 above its maximum of 2"),
    "alternatives": (
        {"grammar": "root ::= (" + " | ".join(f"x{i}" for i in range(200)) + ")+\n"
         + "\n".join(f'x{i} ::= "a"+ [a-c]*' for i in range(200))}, (200,), "",
    ),
    "exponential": ({"grammar": 'root ::= s\ns ::= "a" s "b" | "a" s "c" | [a-z]'}, (200,), ""),
    "doubling": ({"grammar": doubling(60)}, (400,), "too big"),
    "ambiguous": (
        {"grammar": "root ::= " + " | ".join(['("a" | "aa"){200,999}'] * 4000), "max_tokens": 300},
        (200, 400), "items",
    ),
    "impossible": ({"grammar": "root ::= [z-a]"}, (400,), "ranges that do not end"),
    "left-recursive": ({"grammar": 'root ::= root "a" | "b"'}, (200,), ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    link = tmp_path_factory.mktemp("models") / f"{MODEL}.gguf"
    link.symlink_to(TARGET)
    with start_server(link, port, "--draft", str(DRAFT), *QUICK) as process:
        with Bystanders(url, MODEL) as alone:
            time.sleep(0.5)
        (text,) = alone.texts
        yield url, process, text
        process.terminate()


@pytest.mark.parametrize("name", ATTACKS)
def test_other_clients_do_not_notice(name: str, server: Server) -> None:
    url, process, alone = server
    extra, statuses, text = ATTACKS[name]
    with Bystanders(url, MODEL) as others:
        time.sleep(0.1)
        answer = requests.post(
            f"{url}/v1/chat/completions", json=ASK | {"temperature": 0} | extra, timeout=60
        )
    assert process.poll() is None
    assert answer.status_code in statuses, answer.text[:300]
    if answer.status_code != 200:
        assert text in answer.text
    assert not others.errors
    assert others.texts == {alone}
    assert max(others.longest.values()) < PATIENCE_S, others.longest
