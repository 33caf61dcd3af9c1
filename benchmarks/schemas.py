# SPDX-License-Identifier: MIT
"""JSONSchemaBench's schemas with eaglecpp and with llama-server: which compile, which answers fit, how fast.

python benchmarks/schemas.py TARGET --schemas FOLDER --llama-server PATH [--draft DRAFT]

FOLDER: `data` of github.com/guidance-ai/jsonschemabench, one folder for each category (also on the Hub:
datasets/epfl-dlab/JSONSchemaBench). Needs `pip install jsonschema`. Each schema is in its prompt.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
from common import arguments, table
from llama_server import LlamaServer, ServerError

import eaglecpp
import eaglecpp.errors

ASK = "Write one JSON value, short and complete, that follows this schema: "
CAP, LONGEST = 256, 1500  # tokens of an answer, characters of a schema that is asked with


def judged(schema: Any, text: str, n: int) -> str:
    """Whether an answer of n tokens is valid, cut, or neither."""
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
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, default=30, help="schemas of each category that are compiled")
    parser.add_argument("--answers", type=int, default=6, help="of each category")
    args = parser.parse_args()
    rng, found, n_all = random.Random(1), dict[str, Any](), 0
    with (
        eaglecpp.Engine.open(args.target, draft=args.draft, n_ctx=2048, n_threads=args.threads) as engine,
        LlamaServer(args.llama_server, args.target, n_ctx=2048, n_threads=args.threads) as server,
    ):

        def asked(who: str, prompt: list[int], schema: Any, n: int) -> tuple[list[int], Any] | None:
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
                return None

        for category in sorted(args.schemas.iterdir()):
            files = sorted(category.glob("*.json"))
            rng.shuffle(files)
            n_answers = args.answers
            for file in files[: args.limit]:
                n_all += 1
                schema = json.loads(file.read_text(encoding="utf-8"))
                both = [asked(who, [1], schema, 1) for who in ("auto", "llama-server")]
                for who, one in zip(("auto", "llama-server"), both, strict=True):
                    found[f"{who} compiled"] = found.get(f"{who} compiled", 0) + (one is not None)
                text = json.dumps(schema)
                if None in both or len(text) > LONGEST or n_answers == 0:
                    continue
                n_answers -= 1
                turns = [{"role": "user", "content": ASK + text}]
                is_chat = engine.has_chat_template
                prompt = engine.chat_prompt(turns) if is_chat else engine.tokenize(ASK + text + "\n")
                for who in ("target-only", "auto", "llama-server"):
                    tokens, timings = asked(who, prompt, schema, CAP) or ([], {})
                    kind = judged(schema, engine.detokenize(tokens).strip(), len(tokens))
                    for key, value in (
                        (kind, 1),
                        ("tokens", timings.get("predicted_n", 0)),
                        ("ms", timings.get("predicted_ms", 0)),
                        ("rounds", timings.get("rounds", 0)),
                    ):
                        found[f"{who} {key}"] = found.get(f"{who} {key}", 0) + value
                    if kind == "invalid":
                        print(f"  {who}, {file.parent.name}/{file.name}: invalid", flush=True)
            print(category.name, n_all, flush=True)
    rows = []
    for who in ("target-only", "auto", "llama-server"):
        of = {key.removeprefix(f"{who} "): value for key, value in found.items() if key.startswith(f"{who} ")}
        n = sum(of.get(kind, 0) for kind in ("valid", "cut", "invalid"))
        per_round = of["tokens"] / of["rounds"] if of.get("rounds") else 0.0
        speed = 1000 * of["tokens"] / of["ms"]
        rows.append([who, of.get("compiled", ""), n, *(of.get(k, 0) for k in ("valid", "cut", "invalid"))])
        rows[-1] += [per_round, f"{speed:.0f}"]
    head = ["", f"compiled of {n_all}", "answers", "valid", f"cut at {CAP}", "invalid", "tokens a round"]
    print(table([*head, "tokens/s"], rows))


if __name__ == "__main__":
    main()
