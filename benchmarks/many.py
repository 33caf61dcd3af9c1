# SPDX-License-Identifier: MIT
"""What several conversations of one engine cost and save each other. Each pair of ways is measured in turns.

    python benchmarks/many.py --target T.gguf --draft D.gguf --users 1,4,16

drafts:   time of the drafter in a round, all conversations of a level in one graph against one after the
          other
prompts:  while one prompt is read: the others' longest wait for a token, and the time to its first token,
          read in the batches of their rounds against in slices between them
prefixes: time to the first token of a prompt that begins like another conversation's, and of one that does
          not
parking:  time to the first token of a conversation that had to make room for another one, parked in host
          memory and read again, what was made room for included
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from pathlib import Path
from typing import Any

from common import arguments, facts, table, write_json

from eaglecpp import AsyncEngine, Engine, Session
from eaglecpp.engine.stream import Stream, next_chunks

_WORDS = ("house", "river", "light", "stone", "garden", "winter", "letter", "music", "paper", "sea")


def prompts(n: int) -> list[str]:
    return [
        f"Tell me about the {_WORDS[i % 10]} and the {_WORDS[(i * 7 + 3) % 10]}, number {i}."
        for i in range(n)
    ]


def open_streams(sessions: list[Session], strategy: str, n_tokens: int) -> list[Stream]:
    streams = [
        session.stream(text, strategy=strategy, max_tokens=n_tokens, temperature=0.0, ignore_eos=True)
        for session, text in zip(sessions, prompts(len(sessions)), strict=True)
    ]
    for stream in streams:  # the prompts
        next(stream)
    return streams


def drafted_ms(streams: list[Stream]) -> float:
    """Of all of them so far."""
    return sum(stream._sequence.timings()["draft_ms"] for stream in streams)


def drafts(engine: Engine, n: int, strategy: str, n_rounds: int) -> tuple[float, float]:
    """Milliseconds of the drafter per round of all: together, one after the other."""
    sessions = [engine.session() for _ in range(n)]
    streams = open_streams(sessions, strategy, engine.n_ctx)
    together, alone = [], []
    for i in range(2 * n_rounds + 4):
        before = drafted_ms(streams)
        if i % 2:
            next_chunks(streams)
            took = (drafted_ms(streams) - before) / n  # each counts what all took
        else:
            for stream in streams:
                next_chunks([stream])
            took = drafted_ms(streams) - before
        if i >= 4:
            (together if i % 2 else alone).append(took)
    close(streams, sessions)
    return statistics.median(together), statistics.median(alone)


def close(streams: list[Stream], sessions: list[Session]) -> None:
    for stream, session in zip(streams, sessions, strict=True):
        stream.close()
        session.close()


def ids(n: int, seed: int) -> list[int]:
    """A prompt that begins like no other."""
    return random.Random(seed).choices(range(1000, 9000), k=n)


def prompt(engine: Engine, n_others: int, n_tokens: int, is_shared: bool, seed: int) -> tuple[float, float]:
    """The longest wait of the others, the time to the first token; milliseconds."""
    sessions = [engine.session() for _ in range(n_others + 1)]
    others = open_streams(sessions[1:], "auto", engine.n_ctx)
    for _ in range(4):
        next_chunks(others)
    reading = sessions[0].stream(ids(n_tokens, seed), max_tokens=4, temperature=0.0, ignore_eos=True)
    longest, start, last = 0.0, time.perf_counter(), time.perf_counter()
    while True:
        if is_shared:
            first = next_chunks([reading, *others])[0]
        else:
            first = next_chunks([reading])[0]
            next_chunks(others)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if first is not None:
            break
    close([reading, *others], sessions)
    return 1000 * longest, 1000 * (now - start)


def prefix(engine: Engine, n_tokens: int, seed: int) -> tuple[float, float]:
    """Time to the first token behind a beginning that another conversation has, and behind one of its own."""
    sessions = [engine.session() for _ in range(3)]
    system, took = ids(n_tokens, seed), []
    for session, start in zip(sessions, (system, system, ids(n_tokens, seed + 1)), strict=True):
        begun = time.perf_counter()
        session.generate([*start, *ids(16, len(took))], max_tokens=1, temperature=0.0)
        took.append(1000 * (time.perf_counter() - begun))
    for session in sessions:
        session.close()
    return took[1], took[2]


def parking(args: argparse.Namespace, options: dict[str, Any], n_tokens: int) -> tuple[float, float]:
    """Two conversations that take turns on one place: parked, and read again."""

    async def talk(n_park_bytes: int) -> float:
        took = []
        given = {**options, "n_parallel": 1, "n_park_bytes": n_park_bytes}
        async with await AsyncEngine.open(args.target, args.draft, **given) as engine:
            texts = [ids(n_tokens, 1), ids(n_tokens, 2)]
            for turn in range(2 * (args.repeats + 1)):
                text = texts[turn % 2]
                begun = time.perf_counter()
                async with engine.stream(text, max_tokens=1, temperature=0.0) as stream:
                    async for chunk in stream:
                        took.append(1000 * (time.perf_counter() - begun))
                        texts[turn % 2] = [*text, *chunk.tokens, *ids(8, turn)]
        return statistics.median(took[2:])

    return asyncio.run(talk(1 << 30)), asyncio.run(talk(0))


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--users", default="1,4,16")
    parser.add_argument(
        "--strategy", default="chain:4;tree:k=4,depth=4,nodes=12", help="several with ; between"
    )
    parser.add_argument("--what", default="drafts,prompts,prefixes,parking")
    parser.add_argument("--rounds", type=int, default=12, help="of drafts")
    parser.add_argument("--repeats", type=int, default=3, help="of the rest")
    parser.add_argument("--prompt", type=int, default=500, help="tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    users = [int(n) for n in args.users.split(",")]
    options = {"n_ctx": 1024, "n_threads": args.threads, "exact": "off", "n_leaves_max": 8, "n_batch": 256}
    result = facts({"target": Path(args.target), "draft": Path(args.draft)}, **options)
    with Engine.open(args.target, draft=args.draft, n_sequences=max(3, max(users) + 1), **options) as engine:
        for what, measure in (
            ("drafts", drafts_rows),
            ("prompts", prompts_rows),
            ("prefixes", prefixes_rows),
        ):
            if what in args.what:
                result[what] = shown(*measure(engine, args, users))
    if "parking" in args.what:
        rows: list[list[object]] = [[n, *parking(args, options, n)] for n in (100, args.prompt)]
        result["parking"] = shown(["tokens", "parked, ms", "read again, ms"], rows)
    write_json(args.json, result)


def shown(head: list[str], rows: list[list[object]]) -> list[dict[str, object]]:
    """Prints the table; the same for JSON."""
    print(table(head, rows), end="\n\n", flush=True)
    return [dict(zip(head, row, strict=True)) for row in rows]


Rows = tuple[list[str], list[list[object]]]


def drafts_rows(engine: Engine, args: argparse.Namespace, users: list[int]) -> Rows:
    rows: list[list[object]] = []
    for strategy in args.strategy.split(";"):
        for n in users:
            together, alone = drafts(engine, n, strategy, args.rounds)
            rows.append([n, strategy, together, alone, together / alone])
    return ["users", "strategy", "together, ms", "one after the other, ms", "ratio"], rows


def prompts_rows(engine: Engine, args: argparse.Namespace, users: list[int]) -> Rows:
    rows: list[list[object]] = []
    for n in users:
        turns = [
            [prompt(engine, n, args.prompt, is_shared, 2 * i + is_shared) for is_shared in (True, False)]
            for i in range(args.repeats)
        ]
        for way, pairs in zip(("in their batches", "between them"), zip(*turns, strict=True), strict=True):
            rows.append([n, way, *medians(list(pairs))])
    return ["others", "way", "longest wait, ms", "first token, ms"], rows


def prefixes_rows(engine: Engine, args: argparse.Namespace, users: list[int]) -> Rows:
    rows: list[list[object]] = []
    for n in (100, args.prompt):
        rows.append([n, *medians([prefix(engine, n, 100 + 2 * i) for i in range(args.repeats)])])
    return ["tokens", "found, ms", "not found, ms"], rows


if __name__ == "__main__":
    main()
