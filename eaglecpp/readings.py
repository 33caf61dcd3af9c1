# SPDX-License-Identifier: MIT
"""Converts a drafter's checkpoint. If the checkpoint can be read in several ways (readings), measures which
reading is right.

Trainers and engines disagree about some checkpoints, and no field of the file identifies the trainer
(`eaglecpp.convert.open_choices`). The target can decide. The target generates a few texts greedily. For each
reading, a drafter is converted. Each drafter drafts from many positions in these texts, using the target's
hidden states. The measure is the expected number of accepted tokens at each position: 1 + p1 + p1 p2 + ...,
where p1, p2, ... are the drafter's probabilities for the target's own next tokens. (Counting correct tokens
instead is noisier. On the demo pair, wrong layers differed by 2 standard errors with counts, and by 6 to 8
standard errors with probabilities.) The drafter was trained under the right reading, so the right reading
drafts best. A checkpoint with only one reading is not measured.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from eaglecpp import convert
from eaglecpp.convert import Choice, ConvertReport, Progress, Reading, read_gguf, read_rows, read_tensor
from eaglecpp.engine.engine import Engine
from eaglecpp.errors import EagleError
from eaglecpp.log import drain
from eaglecpp.lowlevel import Drafter, DraftFile, EngineOptions, Target
from eaglecpp.opening.fetch import local_checkpoint
from eaglecpp.opening.find import find_target
from eaglecpp.store.errors import Report
from eaglecpp.store.progress import Bars

Say = Callable[[str], None]
Array = NDArray[np.float32]
Readings = dict[str, str]

PROMPTS = (
    "Explain in a few sentences how a bicycle stays upright while it is moving.",
    "Write a Python function that returns the n-th Fibonacci number, and say what it does.",
    "List five things to check before a long journey by car, each with a short reason.",
    "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
    "What is the difference between a list and a tuple? Answer with an example.",
)
N_TOKENS = 128
"""Number of tokens of each answer that the target generates."""
DEPTH = 4
"""Number of tokens that are drafted in a row at each measured position."""
STRIDE = 2
"""Number of tokens from one measured position to the next. Positions in between are skipped, because
neighbouring positions give nearly the same result.
"""
CERTAIN = 3.0
"""Minimum difference between two readings, in standard errors of the mean difference, at which one reading
counts as better. Neighbouring positions share tokens, so the difference is less certain than this number
suggests.
"""
_LITTLE = 0.02
"""Drafting stops at a depth that is reached with a probability below this value."""
_CANDIDATES = 64
"""Number of likeliest tokens that a block drafter returns for each position. All other tokens count as
impossible.
"""
MATTERS = 0.01
"""Minimum difference in expected tokens in a row. A smaller difference does not overrule a default, even if
the difference is certain.
"""
MOST = 16
"""Maximum number of combinations of readings to measure."""


@dataclass(frozen=True)
class OwnText:
    """A text that the target generated. first: index of the answer's first token. features: hidden states by
    boundary id, f32 [len(tokens), n_embd].
    """

    tokens: list[int]
    first: int
    features: Mapping[int, Array]


@dataclass(frozen=True)
class Measured:
    """Result of the measurement for one combination of readings. lengths: expected tokens in a row at each
    measured position, including the target's own token.
    """

    readings: Readings
    lengths: NDArray[np.float64]

    @property
    def mean(self) -> float:
        return float(self.lengths.mean())

    def leads(self, other: Measured) -> bool:
        """Returns whether this reading is better than the other reading. The difference must be statistically
        certain (`CERTAIN`) and large enough (`MATTERS`).
        """
        gain = self.lengths - other.lengths
        mean = float(gain.mean())
        return mean >= MATTERS and mean >= CERTAIN * float(gain.std()) / np.sqrt(len(gain))


def convert_checkpoint(
    src: str | os.PathLike[str],
    target: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    type: str = "Q8_0",
    progress: Callable[[Progress], None] | None = None,
    report: Report | None = None,
    say: Say = lambda _: None,
    **reading: Unpack[Reading],
) -> ConvertReport:
    """Converts a drafter checkpoint to a GGUF that drafts for `target`.

    src:     a checkpoint folder, a weight file, a drafter's GGUF, or hf.co/OWNER/NAME
    target:  a GGUF or a stored model
    type, progress: as in `eaglecpp.convert.convert_checkpoint`, which takes paths and measures nothing
    report:  function that receives the progress of downloads; None = progress bars on a terminal or in a
        notebook
    say:     function that receives a report about measuring the readings, line by line
    reading: known facts about the checkpoint: aux_layers, readings by name; see `eaglecpp.convert.Reading`

    If the checkpoint can be read in several ways, the reading that drafts best is used. If the target cannot
    be run, or no reading beats the default, the default is used. Raises ModelNotFoundError, DownloadError,
    and any EagleError of the conversion.
    """
    model, out_path = find_target(target).target, None if out is None else Path(out)
    known, reasons = dict(reading.get("readings") or {}), dict(reading.get("reasons") or {})
    with Bars() as bars, local_checkpoint(os.fspath(src), report or bars) as (path, hub_id):
        layers = reading.get("aux_layers")
        options: dict[str, Any] = {"type": type, "hub_id": hub_id, "aux_layers": layers}
        choices = convert.open_choices(path, model, readings=known, aux_layers=layers)
        try:
            folder = Path() if out_path is None else out_path.parent
            measured = _measure(path, model, folder, choices, known, options, say) if choices else []
        except convert.errors.TargetError:  # a wrong target is an error in every reading
            raise
        except (EagleError, OSError, MemoryError) as error:
            # Errors of the checkpoint and of the output folder are raised below, by convert_checkpoint.
            say(f"cannot measure how to read this checkpoint: {error}")
            measured = []
        best = choose(measured, choices) if measured else None
        for line in _table(measured, best) if len(measured) > 1 else ():
            say(line)
        if best is not None:
            known, reasons = known | best.readings, _reasons(best, measured, choices)
        options |= {"readings": known, "reasons": reasons}
        return convert.convert_checkpoint(path, model, out_path, progress=progress, **options)


def choose(measured: Sequence[Measured], choices: Sequence[Choice]) -> Measured | None:
    """Returns the reading to use. The candidates are the best reading and all readings that are not certainly
    worse. Of the candidates, the reading closest to the defaults is returned. Returns None if the candidates
    disagree about a choice without a default.
    """
    best = max(measured, key=lambda m: m.mean)
    contenders = [m for m in measured if not best.leads(m)]
    undecided = [choice.name for choice in choices if choice.is_open]
    if len({tuple(m.readings[name] for name in undecided) for m in contenders}) > 1:
        return None
    return min(contenders, key=lambda m: (_departures(m, choices), -m.mean))


def _departures(measured: Measured, choices: Sequence[Choice]) -> int:
    return sum(measured.readings[c.name] != c.values[0] for c in choices if not c.is_open)


def _measure(
    src: Path,
    target: Path,
    folder: Path,
    choices: Sequence[Choice],
    known: Readings,
    options: Mapping[str, Any],
    say: Say,
) -> list[Measured]:
    """Measures every combination of the choices' values that the converter accepts. The combination of the
    defaults comes first.

    folder: where the drafters are written while they are measured. Raises EagleError if the target cannot be
    run or no combination can be converted.
    """
    names = [choice.name for choice in choices]
    values = itertools.islice(itertools.product(*(choice.values for choice in choices)), MOST)
    layers: dict[int, tuple[int, ...]] = {}
    combinations: list[Readings] = []
    refused: EagleError | None = None
    for combination in values:
        readings = dict(zip(names, combination, strict=True))
        try:
            aux_layers = options["aux_layers"]
            draft = convert.open_drafter(src, target, readings=known | readings, aux_layers=aux_layers)
        except EagleError as error:
            refused = refused or error
            continue
        layers[len(combinations)] = draft.spec.aux_layers
        combinations.append(readings)
    if not combinations and refused is not None:
        raise refused
    if len(combinations) == 1:
        return [Measured(combinations[0], np.ones(1))]
    say(
        f"this checkpoint can be read in {len(combinations)} ways ({', '.join(names)}); measuring how well "
        "each way drafts the target's own text"
    )
    texts = own_texts(target, sorted({layer for ids in layers.values() for layer in ids}))
    measured = []
    with tempfile.TemporaryDirectory(prefix=".eaglecpp-readings-", dir=folder) as work:
        for index, readings in enumerate(combinations):
            path = Path(work) / f"{index}.gguf"
            convert.convert_checkpoint(src, target, path, readings=known | readings, **options)
            measured.append(Measured(readings, expected_lengths(path, target, layers[index], texts)))
            path.unlink()
    return measured


def own_texts(target: Path, layers: Sequence[int]) -> list[OwnText]:
    """Generates the target's greedy answers to the built-in prompts, with the target's hidden states. Raises
    EagleError.
    """
    with Engine.open(target, strategy="off", n_ctx=_ROOM) as engine:
        room = engine.n_ctx - 1
        written = []
        for prompt in PROMPTS:
            ids = _prompt(engine, prompt)[: room // 2]
            with engine.session() as session:
                answer = session.generate(
                    ids, max_tokens=min(N_TOKENS, room - len(ids)), temperature=0.0, ignore_eos=True
                )
            written.append((ids, [*ids, *answer.tokens]))
    options = EngineOptions()
    options.target_path, options.n_ctx = str(target), _ROOM
    runner = Target(options, layers)
    try:
        texts = []
        for ids, tokens in written:
            features, _ = runner.forward(tokens, want_logits=False)
            texts.append(OwnText(tokens, len(ids), dict(zip(layers, features, strict=True))))
    finally:
        drain()
    return texts


_ROOM = 512
"""Context length in tokens, which is enough for the longest prompt in its chat template and the answer."""


def _prompt(engine: Any, text: str) -> list[int]:
    """Returns the question in the chat template, or the text alone if the model has no usable template."""
    try:
        ids: list[int] = engine.chat_prompt([{"role": "user", "content": text}])
    except EagleError:
        ids = engine.tokenize(text)
    return ids


def expected_lengths(
    draft: Path, target: Path, layers: Sequence[int], texts: Sequence[OwnText]
) -> NDArray[np.float64]:
    """Returns `Measured.lengths` of a drafter. layers: boundary ids of the hidden states that the drafter
    reads, in order.
    """
    file = DraftFile(str(draft))
    ids = file.d2t or list(range(file.info["n_draft_vocab"]))
    rank = {token: index for index, token in enumerate(ids)}
    options = EngineOptions()
    options.n_ctx = _ROOM
    drafter = Drafter(str(draft), options, *_shared_tables(file, target, texts))
    lengths = []
    for text in texts:
        drafter.reset()
        features = np.stack([text.features[layer] for layer in layers])
        tokens, first = text.tokens, text.first
        if first > 1:  # the drafter pairs the hidden state at position p with token p + 1
            drafter.append(np.ascontiguousarray(features[:, : first - 1]), tokens[1:first])
        for row in range(first - 1, len(tokens) - DEPTH - STRIDE, STRIDE):
            rows = np.ascontiguousarray(features[:, row : row + STRIDE])
            lengths.append(1.0 + _expected(drafter, rows, tokens[row + 1 : row + STRIDE + DEPTH + 1], rank))
    drain()
    if not lengths:
        raise EagleError(f"{target}: the context is too short to draft {DEPTH} tokens of an answer")
    return np.array(lengths)


def _expected(drafter: Drafter, features: Array, tokens: Sequence[int], rank: Mapping[int, int]) -> float:
    """Returns the expected number of correct drafted tokens in a row after the given positions. features:
    hidden states of these positions; tokens: one token for each position, then the tokens that the drafts
    should match; rank: index of each token in the drafter's vocabulary.
    """
    n_rows = features.shape[1]
    embedded, wanted = tokens[:n_rows], tokens[n_rows:]
    n_block = min(DEPTH, drafter.info["n_parallel"])
    # in these drafters, a token may depend on the token before
    if n_block and drafter.info["arch"].startswith("dflash"):
        block = drafter.block(features, embedded, wanted[: n_block - 1], _CANDIDATES)
        found = [{token: math.exp(p) for token, p, _ in top if math.isfinite(p)} for top in block]
        chances = [one.get(token, 0.0) for one, token in zip(found, wanted, strict=False)]
        return float(np.cumprod(chances).sum())
    if n_block:
        rows = drafter.commit_ahead(features, embedded, n_block - 1)
        chances = [_chance(row, rank.get(token)) for row, token in zip(rows, wanted, strict=False)]
        return float(np.cumprod(chances).sum())
    logits, state = drafter.commit(features, embedded)
    reached = expected = _chance(logits, rank.get(wanted[0]))
    for depth in range(1, DEPTH):
        if reached < _LITTLE:
            break
        rows, states = drafter.extend(state[None], [wanted[depth - 1]], [depth - 2])
        state = states[0]
        reached *= _chance(rows[0], rank.get(wanted[depth]))
        expected += reached
    return expected


def _chance(logits: Array, index: int | None) -> float:
    if index is None:
        return 0.0
    weights = np.exp(logits.astype(np.float64) - logits.max())
    chance = float(weights[index] / weights.sum())
    return chance if np.isfinite(chance) else 0.0  # a wrong reading can give NaN


def _shared_tables(
    file: DraftFile, target: Path, texts: Sequence[OwnText]
) -> tuple[Array | None, Array | None]:
    """Returns the target's embeddings and the target's output head; None for a table that the drafter's file
    contains. To save memory, only the embeddings of tokens in the texts are read.
    """
    has_table, has_head = file.info["has_embedding"], file.info["has_head"]
    if has_table and has_head:
        return None, None
    model = read_gguf(target)
    table, head = None, None
    if not has_table:
        table = np.zeros((file.info["n_vocab"], file.info["n_embd"]), np.float32)
        for token in {token for text in texts for token in text.tokens}:
            table[token] = read_rows(model, "token_embd.weight", token, token + 1)[0]
    if not has_head:
        name = "output.weight" if "output.weight" in model.tensors else "token_embd.weight"
        head = read_tensor(model, name)
    return table, head


def _reasons(best: Measured, measured: Sequence[Measured], choices: Sequence[Choice]) -> dict[str, str]:
    """Returns the reason for the value of each choice. The reasons are written to the drafter's file."""
    reasons = {}
    for choice in choices:
        others = [
            one
            for one in measured
            if one.readings[choice.name] != best.readings[choice.name]
            and all(one.readings[c.name] == best.readings[c.name] for c in choices if c is not choice)
        ]
        if not others:
            reasons[choice.name] = "the only value that can be converted"
            continue
        other = max(others, key=lambda one: one.mean)
        result = f"{best.mean:.2f} tokens in a row, but {other.mean:.2f} with {other.readings[choice.name]}"
        reasons[choice.name] = (
            f"measured: {result}" if best.leads(other) else f"default, measured as no worse: {result}"
        )
    return reasons


def _table(measured: Sequence[Measured], best: Measured | None) -> list[str]:
    """Returns the results as lines for the user."""
    rows = [(", ".join(f"{k}={v}" for k, v in one.readings.items()), one) for one in measured]
    width = max(len(name) for name, _ in rows)
    n_positions = len(measured[0].lengths)
    lines = [f"{'reading':<{width}}  expected tokens in a row, over {n_positions} positions"]
    for name, one in rows:
        mark = "  <- used" if one is best else ""
        lines.append(f"{name:<{width}}  {one.mean:.3f}{mark}")
    if best is None:
        lines.append("no reading is clearly better, and there is no default; choose one with --reading")
    return lines
