# SPDX-License-Identifier: MIT
"""Runs JSONSchemaBench's schemas with eaglecpp and with llama-server. Reports which schemas compile, which
answers are valid, and how fast the answers are. Each contestant is first in turn.

python benchmarks/schemas.py TARGET --schemas FOLDER --llama-server PATH [--draft DRAFT]

FOLDER: `data` of github.com/guidance-ai/jsonschemabench, one folder for each category (also on the Hub:
datasets/epfl-dlab/JSONSchemaBench). Needs `pip install jsonschema`. The prompt of an answer contains the
schema.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter, deque
from pathlib import Path
from typing import Any

import jsonschema
from common import arguments, table
from llama_server import LlamaServer, ServerError

import eaglecpp
import eaglecpp.errors
from eaglecpp.lowlevel import system_info

ASK = "Write one JSON value, short and complete, that follows this schema: "
CAP, LONGEST = 256, 1500  # maximum tokens of an answer, and maximum characters of a schema in a prompt


def judged(schema: Any, text: str, n: int) -> str:
    """Returns whether an answer of n tokens is valid, cut or invalid."""
    if n >= CAP:
        return "cut"
    try:
        jsonschema.validators.validator_for(schema)(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return "invalid"
    return "valid"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--schemas", type=Path, required=True)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--limit", type=int, default=30, help="number of schemas to compile in each category")
    parser.add_argument("--answers", type=int, default=6, help="number of answers in each category")
    args = parser.parse_args()
    rng, n_all = random.Random(1), 0
    found: dict[str, Counter[str]] = {who: Counter() for who in ("target-only", "auto", "llama-server")}
    order = deque(found)

    def started() -> LlamaServer:
        n_threads = args.threads or system_info()["n_cores"]
        return LlamaServer(args.llama_server, args.target, n_ctx=2048, n_threads=n_threads)

    with (
        eaglecpp.Engine.open(args.target, draft=args.draft, n_ctx=2048, n_threads=args.threads) as engine,
        contextlib.ExitStack() as servers,
    ):
        server = servers.enter_context(started())

        def asked(who: str, prompt: list[int], schema: Any, n: int) -> tuple[list[int], Any] | None:
            nonlocal server
            try:
                if who == "llama-server":
                    answer = server.complete(prompt, n, json_schema=schema, ignore_eos=False)
                    return answer.tokens, answer.timings
                options = {"strategy": "off" if who == "target-only" else "auto", "temperature": 0.0}
                with engine.session() as session:
                    done = session.generate(prompt, max_tokens=n, json_schema=schema, **options)
                return done.tokens, done.timings.as_dict()
            except (eaglecpp.errors.GrammarError, ServerError) as error:
                print(f"  {who}, {file.parent.name}/{file.name}: {str(error)[:300]!r}", flush=True)
                if who == "llama-server" and server.process.poll() is not None:
                    found[who]["crashes"] += 1
                    server = servers.enter_context(started())
                return None

        for category in sorted(args.schemas.iterdir()):
            files = sorted(category.glob("*.json"))
            rng.shuffle(files)
            n_answers = args.answers
            for file in files[: args.limit]:
                n_all += 1
                schema = json.loads(file.read_text(encoding="utf-8"))
                both = {who: asked(who, [1], schema, 1) for who in ("auto", "llama-server")}
                for who, one in both.items():
                    found[who]["compiled"] += one is not None
                text = json.dumps(schema)
                if None in both.values() or len(text) > LONGEST or n_answers == 0:
                    continue
                n_answers -= 1
                turns = [{"role": "user", "content": ASK + text}]
                is_chat = engine.has_chat_template
                prompt = engine.chat_prompt(turns) if is_chat else engine.tokenize(ASK + text + "\n")
                order.rotate()
                for who in order:
                    counts = found[who]
                    tokens, timings = asked(who, prompt, schema, CAP) or ([], {})
                    kind = judged(schema, engine.detokenize(tokens).strip(), len(tokens))
                    counts[kind] += 1
                    for name in ("predicted_n", "predicted_ms", "rounds"):
                        counts[name] += timings.get(name, 0)
                    if kind == "invalid":
                        print(f"  {who}, {file.parent.name}/{file.name}: invalid", flush=True)
            print(category.name, n_all, flush=True)
    rows = []
    for who, counts in found.items():
        kinds = [counts[kind] for kind in ("valid", "cut", "invalid")]
        per_round = counts["predicted_n"] / counts["rounds"] if counts["rounds"] else 1.0
        speed = 1000 * counts["predicted_n"] / counts["predicted_ms"] if counts["predicted_ms"] else 0.0
        rows.append(
            [who, counts["compiled"] or "", counts["crashes"], sum(kinds), *kinds, per_round, f"{speed:.0f}"]
        )
    head = [
        "",
        f"compiled of {n_all}",
        "crashes",
        "answers",
        "valid",
        f"cut at {CAP}",
        "invalid",
        "tokens a round",
    ]
    print(table([*head, "tokens/s"], rows))


if __name__ == "__main__":
    main()
