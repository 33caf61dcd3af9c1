# SPDX-License-Identifier: MIT
"""Measures tokens per round and the speed-up of drafting for records whose form is given by a JSON schema.

    python benchmarks/structured.py TARGET [--draft DRAFT] [--law N]

The printed bound assumes that forced tokens cost nothing, and that other tokens take as many rounds as with
`text_drafts="off"`. `--law N` compares N answers to random schemas with target-only answers. With `--law`,
`-n` is the seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from eaglecpp import Completion, Engine
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.engine.session import Session

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.form_law import STRATEGIES, compare_answers

ENUMS = ["waiting_for_payment", "in_transit_to_customer", "delivered_to_customer"]
COUNT = {"type": "integer", "minimum": 1, "maximum": 99}
RECORDS: dict[str, dict[str, Any]] = {
    "keys": {
        "customer_full_name": {"type": "string", "maxLength": 30},
        "document_type_identifier": {"const": "purchase_order_confirmation"},
        "shipping_destination_city": {"type": "string", "maxLength": 24},
        "current_delivery_status": {"enum": ENUMS},
        "preferred_contact_channel": {"enum": ["electronic_mail", "telephone_call", "postal_letter"]},
        "total_number_of_items": COUNT,
    },
    "forced": {
        "schema_version_identifier": {"const": "2026-11-29-stable-release"},
        "document_type_identifier": {"const": "purchase_order_confirmation"},
        "responsible_department_name": {"const": "customer relations and support"},
        "is_confirmed_by_customer": {"type": "boolean"},
        "total_number_of_items": COUNT,
    },
    "free": {
        "name": {"type": "string", "maxLength": 30},
        "city": {"type": "string", "maxLength": 30},
        "age": COUNT,
    },
}
ASK = "Anna Miller from Berlin ordered three books. Write the record as JSON by this schema: "
GOALS = {"keys": 3.0, "forced": 5.0}  # minimum numbers of tokens per round


def schema_of(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": RECORDS[name], "required": [*RECORDS[name]]}


def answers(session: Session, name: str, temperature: float, strategy: str, n: int) -> list[Completion]:
    """Returns completions with n different seeds, after a warm-up answer."""
    messages = [{"role": "user", "content": ASK + json.dumps(RECORDS[name])}]
    options: dict[str, Any] = {
        "json_schema": schema_of(name), "temperature": temperature, "strategy": strategy, "max_tokens": 200,
    }  # fmt: skip
    return [session.chat(messages, seed=seed, **options) for seed in range(n + 1)][1:]


def forced(engine: Engine, name: str, tokens: list[int]) -> list[bool]:
    """Returns for each token of an answer whether the schema allows only this token's text. The last token is
    never forced, because each round draws a token.
    """
    matcher = LLMatcher(LLTokenizer("byte"), str(resolve_grammar(json_schema=schema_of(name))))
    out = []
    for token in tokens:
        piece = engine.token_to_piece(token)
        out.append(bool(piece) and matcher.compute_ff_bytes().startswith(piece))
        matcher.consume_tokens([*piece])
    return out


def n_drawn(engine: Engine, name: str, made: list[Completion]) -> tuple[int, int]:
    """Returns the number of tokens that are not forced, and how many of these tokens were not accepted
    drafts. The first token of an answer is not counted, because it comes with the prompt.
    """
    each = []
    for one in made:
        flags = zip(forced(engine, name, one.tokens), one.accepted, strict=True)
        each += [is_accepted for is_forced, is_accepted in [*flags][1:] if not is_forced]
    return len(each), each.count(False)


def compare(name: str, temperature: float, drafts: Session, plain: Session, engine: Engine, n: int) -> str:
    """Returns one row of the table. plain: session of an engine that drafts no forced text."""
    target_only = answers(drafts, name, temperature, "off", n)
    drafted, unforced = (answers(one, name, temperature, "auto", n) for one in (drafts, plain))
    assert [one.tokens for one in target_only] == [one.tokens for one in drafted]
    n_tokens = sum(len(one.tokens) - 1 for one in drafted)
    n_rounds = sum(one.timings.rounds for one in drafted)
    n_free, n_bound = n_drawn(engine, name, unforced)
    ms = [sum(one.timings.predicted_ms for one in all_) for all_ in (target_only, drafted)]
    rate, bound = n_tokens / n_rounds, n_tokens / n_bound
    line = f"{name:7} {temperature} {1 - n_free / n_tokens:3.0%} forced, {rate:5.2f} tokens per round"
    line += f", {rate / bound:.2f} of the bound {bound:5.2f}, {ms[0] / ms[1]:.2f} times target-only"
    return line + (f", below {GOALS[name]}" if rate < GOALS.get(name, 0.0) else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("-n", type=int, default=3, help="number of seeds")
    parser.add_argument("--law", type=int, default=0, help="compare N answers with target-only answers")
    args = parser.parse_args()
    options = {"n_ctx": 2048, "n_threads": args.threads}
    with Engine.open(args.target, draft=args.draft, **options) as engine:
        if args.law:
            print(
                compare_answers(engine, args.law, args.n, STRATEGIES if args.draft else ["auto", "chain:3"])
            )
            return
        with (
            engine.session() as drafts,
            Engine.open(args.target, draft=args.draft, text_drafts="off", **options) as unforced,
            unforced.session() as plain,
        ):
            for name in RECORDS:
                for temperature in (0.0, 0.8):
                    print(compare(name, temperature, drafts, plain, engine, args.n), flush=True)


if __name__ == "__main__":
    main()
