# SPDX-License-Identifier: MIT
"""Tokens a round and speed of records by a schema, with drafting over target-only:

python benchmarks/structured.py TARGET [--draft DRAFT]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import eaglecpp
from eaglecpp.engine.session import Session

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


def answers(session: Session, name: str, temperature: float, strategy: str, n: int) -> Any:
    """Completions of n seeds, behind one that is not counted."""
    record = RECORDS[name]
    schema = {"type": "object", "properties": record, "required": [*record]}
    messages = [{"role": "user", "content": ASK + json.dumps(record)}]
    options = {"json_schema": schema, "temperature": temperature, "strategy": strategy, "max_tokens": 200}
    return [session.chat(messages, seed=seed, **options) for seed in range(n + 1)][1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("-n", type=int, default=3, help="seeds")
    args = parser.parse_args()
    options = {"text_drafts": "on", "n_ctx": 2048, "n_threads": args.threads}
    with (
        eaglecpp.Engine.open(args.target, draft=args.draft, **options) as engine,
        engine.session() as session,
    ):
        for name in RECORDS:
            for temperature in (0.0, 0.8):
                plain, drafted = (answers(session, name, temperature, s, args.n) for s in ("off", "auto"))
                assert [one.tokens for one in plain] == [one.tokens for one in drafted]
                n = sum(len(one.tokens) for one in drafted)
                rounds = sum(
                    one.timings.rounds + 1 for one in drafted
                )  # the first token comes with the prompt
                ms = [sum(one.timings.predicted_ms for one in all_) for all_ in (plain, drafted)]
                speed = ms[0] / ms[1]
                print(
                    f"{name:7} {temperature} {n / rounds:5.2f} tokens a round, {speed:.2f} times target-only"
                )


if __name__ == "__main__":
    main()
