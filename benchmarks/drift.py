# SPDX-License-Identifier: MIT
"""Attention drift: how an EAGLE-3 and an EAGLE 3.1 drafter of one target change as they draft deeper.

    python benchmarks/drift.py --eagle3 CHECKPOINT --eagle31 CHECKPOINT [-o docs/research]
    python benchmarks/drift.py ... --target T.gguf --questions benchmarks/data/chat.jsonl --name smollm2

The target answers questions greedily in three settings: as trained, after a conversation of `--long` tokens,
and in a chat template the drafters have never seen. Without `--questions` they are those of the demo model,
in wordings that nobody trained on; of a file the first turns are asked, and the target's own answers to
others make the long conversation. Every row of every answer is the anchor of a chain of ten drafts. Per
depth: the share of chains accepted that got there (conditional), the RMS of the state that is fed back,
relative to depth 1, and the share of attention on the first four tokens, on the rest of the context, and on
the drafts themselves.
`-o` writes the figure, and the table where `drift.md` is marked with `--name`, if it is.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, facts, note, table, write_json
from torch import Tensor

import eaglecpp
from eaglecpp.convert import open_drafter, read_gguf
from eaglecpp.train.fit.attention import Layout, dense_weights, mix
from eaglecpp.train.fit.batch import make_batch
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.weights import from_checkpoint, target_embedding
from eaglecpp.train.samples import TrainText

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "demo_model"))
from dialogues import Dialogues
from facts import collect

PAIR = Path(__file__).parents[1] / "examples" / "demo_model" / "pair"
DEPTH = 10
N_FIRST = 4  # tokens at the beginning that trained attention rests on
MAX_TOKENS = 120
BEGIN, END = "<!-- drift {}: begin -->", "<!-- drift {}: end -->"
OTHER_TEMPLATE = "### Instructions\nYou are a helpful assistant.\n\n### Question\n{}\n\n### Answer\n"
SETTINGS = {
    "short": "as trained: one question",
    "long": "longer: the same questions after others",
    "template": "another chat template, with a system prompt",
}


@dataclass(frozen=True)
class Curves:
    """One drafter in one setting, each a list over depths."""

    rates: list[float]
    norms: list[float]
    first: list[float]
    context: list[float]
    own: list[float]
    length: float
    n_chains: int


class Observer:
    """Attention that works as the dense one and adds up where it went."""

    def __init__(self) -> None:
        self.shares: list[Tensor] = []  # per step: [3, n_rows]: first tokens, context, own

    def __call__(
        self,
        q: Tensor,
        k0: Tensor,
        v0: Tensor,
        later_k: Sequence[Tensor],
        later_v: Sequence[Tensor],
        layout: Layout,
    ) -> Tensor:
        (part,) = layout.parts()
        weights = dense_weights(q, k0, later_k, part)
        first = weights[..., :N_FIRST].sum(-1)
        own = weights[..., k0.shape[1] :].sum(-1)
        self.shares.append(torch.stack([first, 1 - first - own, own]).mean(1))
        return mix(weights, v0, later_v).to(q.dtype)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, default=PAIR / "demo-target.gguf")
    parser.add_argument("--eagle3", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--eagle31", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("-n", type=int, default=60, help="questions in each setting")
    parser.add_argument("--long", type=int, default=480, help="tokens of the long setting, at least")
    parser.add_argument(
        "--questions", type=Path, help="JSON Lines with `turns`, as benchmarks/data/chat.jsonl"
    )
    parser.add_argument("--name", default="demo", help="which figure, and which table of drift.md")
    parser.add_argument("-o", "--out", type=Path, help="directory of drift.md and of the figure")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    n_ctx = max(1024, 2 * options.long)
    with eaglecpp.Engine.open(options.target, strategy="off", n_ctx=n_ctx) as engine:
        target = Path(engine.target_path)
        turns = from_file(engine, options.questions) if options.questions else from_demo
        asked = {name: conversations(engine, turns(), name, options.n, options.long) for name in SETTINGS}
    curves: dict[str, dict[str, Curves]] = {}
    for name, path in (("EAGLE-3", options.eagle3), ("EAGLE 3.1", options.eagle31)):
        model, draft_ids, layers = load(path, target)
        curves[name] = {
            setting: observe(model, draft_ids, layers, target, asked[setting]) for setting in SETTINGS
        }
    lengths = {name: round(float(np.mean([len(c.tokens) for c in some]))) for name, some in asked.items()}
    text = report(curves, lengths)
    print(text)
    if options.out:
        insert(options.out / "drift.md", options.name, text)
        draw(curves, options.out / ("drift.png" if options.name == "demo" else f"drift-{options.name}.png"))
    results = {name: {s: vars(c) for s, c in some.items()} for name, some in curves.items()}
    write_json(options.json, {**facts({"target": target}, depth=DEPTH, n=options.n), "results": results})


Turns = Iterator[tuple[str, Iterator[tuple[str, str]]]]
"""Questions, and for each what may have been asked and answered before it."""


def from_demo() -> Turns:
    """Wordings that nobody trained on, and dialogues as the demo model was trained with."""
    dialogues, rng = Dialogues(collect()), random.Random(31)
    others = ((other.text, other.answer) for other in iter(lambda: dialogues.draw(rng), None))
    while True:
        yield dialogues.ask("what", rng, held_out=True).text, others


def from_file(engine: eaglecpp.Engine, path: Path) -> Callable[[], Turns]:
    """The first turns of a file; the conversations before them are the target's answers to the others."""
    questions = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()]
    answers: dict[str, str] = {}

    def answered(question: str) -> Iterator[tuple[str, str]]:
        rng = random.Random(question)
        while True:
            other = rng.choice(questions)
            if other == question:
                continue
            if other not in answers:
                asked = [{"role": "user", "content": other}]
                answers[other] = engine.chat(asked, max_tokens=MAX_TOKENS, temperature=0.0).text
            yield other, answers[other]

    return lambda: ((question, answered(question)) for question in questions)


def conversations(
    engine: eaglecpp.Engine, turns: Turns, setting: str, n: int, n_long: int
) -> list[TrainText]:
    """Prompts with the target's own greedy answers, the last answer marked."""
    made: list[TrainText] = []
    for question, others in turns:
        if len(made) == n:
            break
        messages: list[dict[str, str]] = []
        if setting == "template":
            prompt = engine.tokenize(OTHER_TEMPLATE.format(question))
        else:
            prompt = engine.chat_prompt([{"role": "user", "content": question}])
            while setting == "long" and len(prompt) < n_long:
                for role, text in zip(("user", "assistant"), next(others), strict=True):
                    messages.append({"role": role, "content": text})
                prompt = engine.chat_prompt([*messages, {"role": "user", "content": question}])
        answer = engine.generate(prompt, max_tokens=MAX_TOKENS, temperature=0.0).tokens
        if len(answer) > DEPTH + 2:
            tokens = np.array([*prompt, *answer], np.int32)
            turns = np.array([0] * len(prompt) + [1] * len(answer), np.int16)
            made.append(TrainText(tokens, turns))
    note(f"{setting}: {len(made)} answers")
    return made


def load(checkpoint: Path, target: Path) -> tuple[DraftModel, np.ndarray[Any, Any], tuple[int, ...]]:
    """A trained drafter in fp32, the draft id of each target token, and its aux layers."""
    draft = open_drafter(checkpoint, target)
    if draft.spec.n_layers != 1:
        raise SystemExit(f"{checkpoint}: expected a drafter of one layer, found {draft.spec.n_layers}")
    embedding = target_embedding(read_gguf(target))
    model = DraftModel(draft.spec, embedding, share_head=False, dtype=torch.float32)
    model.load_state_dict(from_checkpoint(draft))
    ids = np.arange(draft.spec.vocab_size) if draft.ids is None else draft.ids
    draft_ids = np.full(draft.spec.vocab_size, -1, np.int64)
    draft_ids[ids] = np.arange(len(ids))
    return model.eval(), draft_ids, draft.spec.aux_layers


@torch.no_grad()
def observe(
    model: DraftModel,
    draft_ids: np.ndarray[Any, Any],
    layers: Sequence[int],
    target: Path,
    asked: Sequence[TrainText],
) -> Curves:
    """Chains from every row of every answer, teacher-forced on what the target wrote."""
    from eaglecpp.train.capture.features import TargetSource

    hit, reached, counted = (np.zeros(DEPTH) for _ in range(3))
    sums = np.zeros((4, DEPTH))  # norm, first, context, own
    source = TargetSource(target, asked, layers)
    for index in range(len(asked)):
        batch = make_batch([source.sample(index)], draft_ids, DEPTH, torch.device("cpu"))
        observer = Observer()
        alive = torch.ones(len(batch.tokens), dtype=torch.bool)
        for k, step in enumerate(model.steps(batch, DEPTH, attention=observer)):
            rows = batch.counted[k]
            was = alive[rows]
            alive[rows] = now = was & (best(model, step.normed[rows]) == batch.best[rows + 1 + k])
            fed = step.normed if model.spec.norm_output else step.hidden
            hit[k] += float(now.sum())
            reached[k] += float(was.sum())
            counted[k] += len(rows)
            sums[0, k] += float(fed[rows].square().mean(-1).sqrt().sum())
            sums[1:, k] += observer.shares[k][:, rows].sum(-1).numpy()
    source.close()
    means = sums / counted
    return Curves(
        rates=(hit / np.maximum(reached, 1)).tolist(),
        norms=(means[0] / means[0, 0]).tolist(),
        first=means[1].tolist(),
        context=means[2].tolist(),
        own=means[3].tolist(),
        length=1 + float((hit / counted)[:5].sum()),
        n_chains=int(counted[0]),
    )


def best(model: DraftModel, states: Tensor) -> Tensor:
    return (states @ model.head.T).argmax(-1)


def report(curves: dict[str, dict[str, Curves]], lengths: dict[str, int]) -> str:
    """The table: acceptance and size of the state, for each setting and drafter."""
    head = ["setting", "drafter", "quantity", *map(str, range(1, DEPTH + 1)), "length, 5 drafts"]
    rows: list[list[Any]] = []
    for setting in SETTINGS:
        for name, some in curves.items():
            found = some[setting]
            label = f"{setting}, {lengths[setting]} tokens"
            rows.append([label, name, "accepted", *found.rates, found.length])
            rows.append([label, name, "state RMS", *found.norms, ""])
    return table(head, rows)


def insert(path: Path, name: str, text: str) -> None:
    """Puts the table between the markers of that name in a document, if it has them."""
    begin, end = BEGIN.format(name), END.format(name)
    before, marker, rest = path.read_text(encoding="utf-8").partition(begin)
    if marker:
        path.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def draw(curves: dict[str, dict[str, Curves]], path: Path) -> None:
    """Four quantities by depth, a column for each setting."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    quantities = {
        "rates": "accepted (conditional)",
        "norms": "RMS of the fed state",
        "first": f"attention on first {N_FIRST} tokens",
        "own": "attention on own drafts",
    }
    figure, axes = pyplot.subplots(
        len(quantities), len(SETTINGS), figsize=(11, 11), sharex=True, sharey="row"
    )
    for row, (field, title) in zip(axes, quantities.items(), strict=True):
        for axis, setting in zip(row, SETTINGS, strict=True):
            for name, style in (("EAGLE-3", "C1o--"), ("EAGLE 3.1", "C0o-")):
                axis.plot(range(1, DEPTH + 1), getattr(curves[name][setting], field), style, label=name, ms=3)
            axis.grid(alpha=0.3)
        row[0].set_ylabel(title)
    for axis, title in zip(axes[0], SETTINGS, strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        axis.set_xlabel("draft depth")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    note(f"wrote {path}")


if __name__ == "__main__":
    main()
