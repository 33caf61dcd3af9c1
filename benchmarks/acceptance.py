# SPDX-License-Identifier: MIT
"""Acceptance of chain drafting against a PyTorch reference run, and whether its texts stay the same.

    python benchmarks/acceptance.py --target T.gguf --draft D.gguf --reference reference.json [--json OUT]

The reference file holds prompts (token ids) with the rounds and the acceptance per depth of a greedy chain
in fp32 PyTorch. Counted as there: whole rounds until the reference's number of tokens exists; acceptance
length = tokens per round, bonus token included; per-depth rates are conditional. Passes when the acceptance
length is within 2 %, each rate within 0.02 and all tokens with drafting equal those without.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Prompt, arguments, facts, note, read_prompts, table, write_json

import eaglecpp

LENGTH_TOLERANCE = 0.02
RATE_TOLERANCE = 0.02
SEED = 1
EXACT = {
    "type_k": "f32",
    "type_v": "f32",
    "draft_type_kv": "f32",
    "flash_attn": "off",
}  # F32 caches, no flash attention


@dataclass
class Counts:
    """Sums over prompts; lists have one entry per draft depth."""

    rounds: int
    tried: list[int]
    accepted: list[int]

    @property
    def acceptance_length(self) -> float:
        return (sum(self.accepted) + self.rounds) / self.rounds

    @property
    def rates(self) -> list[float]:
        return [a / t if t else 0.0 for a, t in zip(self.accepted, self.tried, strict=True)]


@dataclass(frozen=True)
class Parting:
    """Where a run with drafting left the plain one.

    `margin`: difference of the two best logits there, which decides a greedy token. `gap`: largest difference
    of a likely token's log-probability between the two runs: what rounding in another batch shape did. A
    sampled token flips when the random number falls into such a gap.
    """

    prompt: int
    position: int
    margin: float
    gap: float


def count_rounds(engine: eaglecpp.Engine, prompt: Prompt, depth: int) -> tuple[list[int], list[int]]:
    """Generated tokens in whole rounds, and the drafts accepted in each round."""
    wanted = int(prompt.expected.get("generated", 96))
    n_tokens = len(prompt.expected.get("output_ids", [])) or wanted
    tokens: list[int] = []
    accepted: list[int] = []
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "strategy": f"chain:{depth}"}
    with (
        engine.session() as session,
        session.stream(prompt.ids, max_tokens=n_tokens + 2 * depth, **options) as stream,
    ):
        for chunk in stream:
            if not chunk.tokens:
                continue
            if tokens:  # the first token comes from the prefill
                accepted.append(sum(chunk.accepted))
            tokens += chunk.tokens
            if len(tokens) >= n_tokens:
                break
    return tokens, accepted


def measure(engine: eaglecpp.Engine, prompts: list[Prompt], depth: int) -> tuple[Counts, list[int]]:
    """Counts over all prompts, and the indices of prompts whose tokens differ from the reference's."""
    counts, differing = Counts(0, [0] * depth, [0] * depth), []
    for i, prompt in enumerate(prompts):
        tokens, accepted = count_rounds(engine, prompt, depth)
        counts.rounds += len(accepted)
        for d in range(depth):
            counts.tried[d] += sum(n >= d for n in accepted)
            counts.accepted[d] += sum(n > d for n in accepted)
        expected = prompt.expected.get("output_ids", [])
        if tokens[: len(expected)] != expected:
            differing.append(i)
    return counts, differing


def run(engine: eaglecpp.Engine, prompt: Prompt, **options: Any) -> eaglecpp.Completion:
    """A generation in a conversation without a past."""
    with engine.session() as session:
        return session.generate(prompt.ids, seed=SEED, ignore_eos=True, **options)


def part(
    engine: eaglecpp.Engine, prompt: Prompt, i: int, at: int, options: dict[str, Any], strategy: str
) -> Parting:
    """Measures a parting: the same two runs again, with log-probabilities up to the token that differs."""
    options = options | {"max_tokens": at + 1, "n_probs": 20}
    # drafting looks ahead: room for whole rounds keeps the batches of the run that parted
    drafted = run(engine, prompt, strategy=strategy, **(options | {"max_tokens": at + 17})).logprobs[at]
    plain = run(engine, prompt, strategy="off", **options).logprobs[at]
    ours, theirs = dict(plain.top), dict(drafted.top)
    gap = max(abs(ours[token] - theirs[token]) for token in ours if token in theirs)
    return Parting(i, at, plain.top[0][1] - plain.top[1][1], gap)


def check_law(
    engine: eaglecpp.Engine, prompts: list[Prompt], strategy: str, temperature: float, n_tokens: int
) -> list[Parting]:
    """Runs each prompt with and without drafting, same seed; where they part."""
    partings = []
    for i, prompt in enumerate(prompts):
        options: dict[str, Any] = {"max_tokens": n_tokens, "temperature": temperature}
        plain, drafted = (run(engine, prompt, strategy=used, **options).tokens for used in ("off", strategy))
        at = next((k for k, (a, b) in enumerate(zip(plain, drafted, strict=True)) if a != b), None)
        if at is not None:
            partings.append(part(engine, prompt, i, at, options, strategy))
    return partings


def compare(counts: Counts, reference: dict[str, Any]) -> tuple[list[list[Any]], bool]:
    """Rows of the table (figure, ours, reference, difference, verdict) and whether all pass."""
    length = reference["acceptance_length"]
    difference = counts.acceptance_length / length - 1
    passed = abs(difference) <= LENGTH_TOLERANCE
    rows: list[list[Any]] = [
        [
            "acceptance length",
            f"{counts.acceptance_length:.4f}",
            f"{length:.4f}",
            f"{100 * difference:+.2f} %",
            "PASS" if passed else "FAIL",
        ]
    ]
    for d, (ours, theirs) in enumerate(
        zip(counts.rates, reference["accepted_per_depth"], strict=True), start=1
    ):
        good = abs(ours - theirs) <= RATE_TOLERANCE
        passed = passed and good
        rows.append(
            [
                f"depth {d}",
                f"{ours:.4f}",
                f"{theirs:.4f}",
                f"{ours - theirs:+.4f}",
                "PASS" if good else "FAIL",
            ]
        )
    return rows, passed


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True, help="JSON of a PyTorch run")
    parser.add_argument(
        "--strategy",
        default=None,
        help="strategy of the check that the text stays the same; default: the reference's chain",
    )
    parser.add_argument("--limit", type=int, default=None, help="first N prompts only")
    parser.add_argument(
        "--n-tokens", type=int, default=96, help="tokens per prompt of the check that the text stays the same"
    )
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--exact", action="store_true", help="F32 caches, no flash attention")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def main() -> int:
    args = parse()
    reference = json.loads(args.reference.read_text(encoding="utf-8"))
    depth = int(reference["k"])
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": args.threads}
    if args.exact:
        options |= EXACT
    strategy = args.strategy or f"chain:{depth}"
    with eaglecpp.Engine.open(args.target, draft=args.draft, strategy=strategy, **options) as engine:
        prompts = read_prompts(args.reference, engine, args.limit)
        counts, differing = measure(engine, prompts, depth)
        rows, passed = compare(counts, reference)
        print(table(["chain:" + str(depth), "eaglecpp", "reference", "difference", ""], rows))
        n_equal = len(prompts) - len(differing)
        note(f"{n_equal} of {len(prompts)} outputs equal the reference's; differing: {differing}")
        law = {}
        for name, temperature in (("greedy", 0.0), ("temperature 0.8, seed 1", 0.8)):
            law[name] = check_law(engine, prompts, strategy, temperature, args.n_tokens)
            verdict = "PASS" if not law[name] else "DIFFERS"
            print(
                f"law, {name}, {strategy}: {len(prompts) - len(law[name])} of {len(prompts)} equal: {verdict}"
            )
            for parting in law[name]:
                at = f"prompt {parting.prompt} parts at token {parting.position}"
                print(f"  {at}: logit margin {parting.margin:.2e}, rounding gap {parting.gap:.2e}")
    result = facts(
        {"target": args.target, "draft": args.draft}, seed=SEED, exact=args.exact, prompts=len(prompts)
    )
    result["acceptance"] = {
        "acceptance_length": counts.acceptance_length,
        "accepted_per_depth": counts.rates,
        "rounds": counts.rounds,
        "reference": {k: reference[k] for k in ("k", "acceptance_length", "accepted_per_depth")},
        "outputs_differing": differing,
        "passed": passed,
    }
    result["law"] = {name: [vars(p) for p in found] for name, found in law.items()}
    write_json(args.json, result)
    return 0 if passed and not any(law.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
