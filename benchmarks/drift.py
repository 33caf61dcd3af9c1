# SPDX-License-Identifier: MIT
"""Measures drafting after long texts, unusual system prompts and unusual templates.

    python benchmarks/drift.py --target T.gguf --draft A.gguf [--draft B.gguf]... [--draft-window 256]...
           [--texts FILE|FOLDER]... [--lengths 1024,4096,32768] [--temperature 0,0.7] [--json OUT]

Each document is cut to the N tokens before a fixed position, which is the same for every length and drafter.
A base model continues the text at this position; a chat model answers a question about the text in its own
template. `--forms` are unusual system prompts and templates, in which texts of the shortest length are also
measured. Sampled answers are the same with every drafter, because the seed is the same.

tokens a round  1 + accepted drafts / rounds, for all texts together
/ plain         speed relative to the same engine without drafting (only meaningful on a quiet machine)
by depth        share of accepted drafts at depth 1, 2, ..., among the drafts whose predecessors were accepted

`--texts`: documents as plain text, or conversations as JSON Lines (`messages`), which are concatenated.
Default: this machine's `data/documents.jsonl`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from common import arguments, by_name, facts, note, table, warn_if_busy, write_json
from questions import read_set
from runner import Cell
from smollm2 import slots

import eaglecpp

QUESTION = "What does this text say? Go through it point by point."
SYSTEMS = {
    "pirate": "You are a pirate captain. Answer in the voice of a pirate.",
    "lawyer": "You are a careful contract lawyer. Point out every risk and never give a definite answer.",
    "terse": "Answer in at most ten words.",
    "json": 'Always answer with one JSON object that has the keys "answer" and "confidence".',
    "agent": "You are an agent with the tools search(query) and run(code). Think step by step and name the "
    "tool that you would call next.",
    "german": "Antworte immer auf Deutsch, auch wenn die Frage auf Englisch gestellt ist.",
}
TEMPLATES = {
    "alpaca": "Below is an instruction. Write a response.\n\n### Instruction:\n{}\n\n### Response:\n",
    "llama2": "[INST] <<SYS>>\nYou are a helpful assistant.\n<</SYS>>\n\n{} [/INST]",
    "plain": "Question: {}\nAnswer:",
}
FORMS = (*(f"system: {name}" for name in SYSTEMS), *(f"template: {name}" for name in TEMPLATES))


def main() -> int:
    args = parse()
    warn_if_busy()
    named = by_name(args.draft)
    result = facts({"target": args.target, **named}, n_tokens=args.n_tokens)
    drafters = {name: (draft, 0) for name, draft in named.items()}
    drafters |= {f"{name}, last {n}": (d, n) for name, d in named.items() for n in args.draft_window}
    strategy = args.strategy or f"chain:{max(map(slots, args.draft))}"
    rows = []
    said: dict[tuple[Any, ...], list[int]] = {}
    for name, (draft, window) in drafters.items():
        n_ctx = max(args.lengths) + args.n_tokens + 256
        with eaglecpp.Engine.open(
            args.target, draft=draft, draft_window=window, n_ctx=n_ctx, n_threads=args.threads
        ) as engine:
            texts = places(engine, args)
            settings = [*map(str, args.lengths), *args.forms]
            # All prompts are built before the first run. So if the target cannot use a form, this program
            # ends at once.
            asked = {s: [prompt(engine, text, s, min(args.lengths)) for text in texts] for s in settings}
            for setting, temperature in itertools.product(settings, args.temperature):
                where = f"{name}, {setting}, {temperature:g}"
                cell, gain = measured(engine, asked[setting], strategy, temperature, args, where, said)
                length = cell.timings.acceptance_length
                note(f"{where}: {length:.2f}")
                rates = " ".join(f"{rate:.2f}" for rate in cell.timings.accepted_per_depth)
                rows.append(
                    [
                        name,
                        setting,
                        temperature,
                        cell.n_questions,
                        cell.timings.acceptance_length,
                        gain,
                        rates,
                    ]
                )
                result[where] = cell.as_dict() | {"over_plain": gain}
                write_json(args.json, result)
    print(
        table(
            ["drafter", "setting", "temperature", "texts", "tokens a round", "/ plain", "by depth"],
            sorted(rows, key=lambda row: args.temperature.index(row[2])),
        )
    )
    return 0


def measured(
    engine: eaglecpp.Engine,
    prompts: list[list[int]],
    strategy: str,
    temperature: float,
    args: argparse.Namespace,
    where: str,
    said: dict[tuple[Any, ...], list[int]],
) -> tuple[Cell, float]:
    """Returns counts over all texts, and the ratio of the speed to target-only decoding (0 without --plain).
    said: tokens of the answers with earlier drafters, by prompt and temperature.
    """
    options: dict[str, Any] = {"temperature": temperature, "seed": 1, "max_tokens": args.n_tokens}
    cell, drafted_ms, plain_ms = Cell(len(prompts)), 0.0, 0.0
    for number, one in enumerate(prompts):
        done = engine.generate(one, strategy=strategy, **options)
        cell.timings += done.timings
        drafted_ms += ms_a_token(done.timings)
        if said.setdefault((*one, temperature), done.tokens) != done.tokens:
            note(f"{where}, text {number}: the text differs from the text with the previous drafter")
        if args.plain:
            alone = engine.generate(one, strategy="off", **options)
            plain_ms += ms_a_token(alone.timings)
            if alone.tokens != done.tokens:
                note(f"{where}, text {number}: the text differs from the text without drafts")
    return cell, plain_ms / drafted_ms if args.plain else 0.0


def ms_a_token(timings: Any) -> float:
    return float(timings.predicted_ms / max(timings.predicted_n - 1, 1))


def places(engine: eaglecpp.Engine, args: argparse.Namespace) -> list[list[int]]:
    """Returns for each document the tokens before a fixed position, as many as the longest length."""
    files = [f for p in args.texts for f in (sorted(p.rglob("*")) if p.is_dir() else [p]) if f.is_file()]
    texts = [read(file) for file in files] or [q.turns[0] for q in read_set("documents", 12000)]
    whole = engine.tokenize("\n\n".join(texts), add_bos=False)
    n = max(args.lengths)
    found = [whole[at - n : at] for at in range(n, len(whole) + 1, max(n // args.overlap, 1))]
    if not found:
        raise SystemExit(f"the texts have {len(whole)} tokens, at least {n} are needed; add --texts")
    return found[:: max(len(found) // args.limit, 1)][: args.limit]


def read(file: Path) -> str:
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix != ".jsonl":
        return text
    chats = (json.loads(line) for line in text.splitlines())
    turns = (turn for chat in chats for turn in chat.get("messages", []))
    return "\n\n".join(f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns)


def prompt(engine: eaglecpp.Engine, tokens: list[int], setting: str, n_form: int) -> list[int]:
    """Returns the prompt of a setting. setting: a length (text of this length in the target's own template)
    or a form (text of the shortest length in this form).
    """
    kind, _, name = setting.partition(": ")
    own = not name
    text = engine.detokenize(tokens[-int(setting) if own else -n_form :])
    if own and not engine.has_chat_template:
        return engine.tokenize(text)
    asked = f"{text}\n\n{QUESTION}"
    if kind == "template":
        return engine.tokenize(TEMPLATES[name].format(asked))
    if not engine.has_chat_template:
        return engine.tokenize(f"{SYSTEMS[name]}\n\n{asked}")
    system = [] if own else [{"role": "system", "content": SYSTEMS[name]}]
    return engine.chat_prompt([*system, {"role": "user", "content": asked}])


def parse() -> argparse.Namespace:
    def numbers(of: Any) -> Any:
        return lambda text: [of(part) for part in text.split(",")]

    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, action="append", required=True, help="drafter; repeatable")
    parser.add_argument("--draft-window", type=int, action="append", default=[], help="tokens; repeatable")
    parser.add_argument("--texts", type=Path, action="append", default=[], help="file or folder; repeatable")
    parser.add_argument("--lengths", type=numbers(int), default=[1024, 4096, 8192, 16384, 32768])
    parser.add_argument("--forms", type=numbers(str), default=[], help=f"some of {', '.join(FORMS)}")
    parser.add_argument("--temperature", type=numbers(float), default=[0.7])
    parser.add_argument("--limit", type=int, default=8, help="maximum number of texts")
    parser.add_argument("--overlap", type=int, default=1, help="number of positions in a document")
    parser.add_argument("--n-tokens", type=int, default=96, help="maximum tokens of an answer")
    parser.add_argument("--strategy", help="default: a chain of the widest block, else of five")
    parser.add_argument("--plain", action="store_true", help="also answer without drafts, and compare speeds")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.forms) - set(FORMS):
        parser.error(f"unknown forms {', '.join(sorted(unknown))}; known: {', '.join(FORMS)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
