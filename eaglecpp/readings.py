# SPDX-License-Identifier: MIT
"""Converts a drafter, and where its checkpoint can be read in several ways, finds out which of them is right.

Trainers and engines disagree about some checkpoints, and no field of the file tells who wrote it
(`eaglecpp.convert.open_choices`). But the target tells: it writes a few texts of its own, greedily; then the
drafter that each reading gives drafts from many places in them, fed with the target's features. Compared is,
place by place, how many tokens in a row can be expected: 1 + p1 + p1 p2 + ..., with the probability that the
drafter gives to each of the target's own tokens. (How many it gets right says the same with more noise: on
the demo pair wrong layers stood out by 2 standard errors so, and by 6 to 8 with probabilities.) The right
reading is the one under which the drafter was trained, so it drafts best. Nothing is measured for a
checkpoint with one reading.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from eaglecpp.errors import EagleError
from eaglecpp.log import drain
from eaglecpp.lowlevel import Drafter, DraftFile, EngineOptions, Target
from eaglecpp.opening.fetch import local_checkpoint
from eaglecpp.opening.find import find_target
from eaglecpp.store.errors import Report
from eaglecpp.store.progress import Bars

if TYPE_CHECKING:
    from eaglecpp.convert import Choice, ConvertReport, Progress, Reading

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
"""Of each answer."""
DEPTH = 4
"""Drafts in a row that are tried at each place."""
STRIDE = 2
"""Rows from one place to the next: neighbours say nearly the same."""
CERTAIN = 3.0
"""Standard errors of the mean difference from which on one reading is better than another. Neighbouring
places share tokens, so that these are fewer than they look.
"""
_LITTLE = 0.02
"""Of a chance to get there, below which nothing further is drafted."""
_CANDIDATES = 64
"""Likeliest tokens of a block's slot; the others count as impossible."""
MATTERS = 0.01
"""Tokens in a row: what is less does not speak against a default, however certain it is."""
MOST = 16
"""Combinations of readings that are tried."""


@dataclass(frozen=True)
class OwnText:
    """What the target wrote. first: index of the answer's first token. features: by boundary id,
    f32 [len(tokens), n_embd].
    """

    tokens: list[int]
    first: int
    features: Mapping[int, Array]


@dataclass(frozen=True)
class Measured:
    """lengths: at each place of the texts, the tokens in a row that can be expected, the target's own too."""

    readings: Readings
    lengths: NDArray[np.float64]

    @property
    def mean(self) -> float:
        return float(self.lengths.mean())

    def leads(self, other: Measured) -> bool:
        """Whether this is better by more than chance, and by enough to matter."""
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
    target:  its GGUF or a stored model
    type, progress: as in `eaglecpp.convert.convert_checkpoint`, which takes paths and measures nothing
    report:  is told about downloads, in place of bars on a terminal and in a notebook
    say:     is told, a line at a time, how the readings of the checkpoint were measured
    reading: what you know of it: aux_layers, readings by name; see `eaglecpp.convert.Reading`
    Where it can be read in several ways, the reading that drafts best is taken; where the target cannot be
    run, or none is better than the default one, the default. Raises ModelNotFoundError, DownloadError, and
    what converting raises: EagleError.
    """
    from eaglecpp import convert

    model, place = find_target(target).target, None if out is None else Path(out)
    given, reasons = dict(reading.get("readings") or {}), dict(reading.get("reasons") or {})
    with Bars() as bars, local_checkpoint(os.fspath(src), report or bars) as (path, hub_id):
        layers = reading.get("aux_layers")
        options: dict[str, Any] = {"type": type, "hub_id": hub_id, "aux_layers": layers}
        choices = convert.open_choices(path, model, readings=given, aux_layers=layers)
        try:
            folder = Path() if place is None else place.parent
            measured = _measure(path, model, folder, choices, given, options, say) if choices else []
        except convert.errors.TargetError:  # a wrong target fits in no way
            raise
        except (EagleError, OSError, MemoryError) as error:
            # what is wrong with the checkpoint or with the place for the file is raised below
            say(f"how the checkpoint is to be read could not be measured: {error}")
            measured = []
        best = choose(measured, choices) if measured else None
        for line in _table(measured, best) if len(measured) > 1 else ():
            say(line)
        if best is not None:
            given, reasons = given | best.readings, _reasons(best, measured, choices)
        options |= {"readings": given, "reasons": reasons}
        return convert.convert_checkpoint(path, model, place, progress=progress, **options)


def choose(measured: Sequence[Measured], choices: Sequence[Choice]) -> Measured | None:
    """The reading to take: of all that the best one does not lead with certainty, the one nearest to the
    defaults. None when that leaves several values of a choice that has no default.
    """
    best = max(measured, key=lambda one: one.mean)
    equals = [one for one in measured if not best.leads(one)]
    undecided = [choice.name for choice in choices if choice.is_open]
    if len({tuple(one.readings[name] for name in undecided) for one in equals}) > 1:
        return None
    return min(equals, key=lambda one: (_departures(one, choices), -one.mean))


def _departures(one: Measured, choices: Sequence[Choice]) -> int:
    return sum(one.readings[c.name] != c.values[0] for c in choices if not c.is_open)


def _measure(
    src: Path,
    target: Path,
    folder: Path,
    choices: Sequence[Choice],
    given: Readings,
    options: Mapping[str, Any],
    say: Say,
) -> list[Measured]:
    """Every combination of the choices' values that the converter accepts, the defaults first.

    folder: where the drafters are written while they are measured. Raises EagleError when the target cannot
    be run or no combination can be converted.
    """
    from eaglecpp import convert

    names = [choice.name for choice in choices]
    values = itertools.islice(itertools.product(*(choice.values for choice in choices)), MOST)
    layers: dict[int, tuple[int, ...]] = {}
    combinations: list[Readings] = []
    refused: EagleError | None = None
    for combination in values:
        readings = dict(zip(names, combination, strict=True))
        try:
            aux_layers = options["aux_layers"]
            draft = convert.open_drafter(src, target, readings=given | readings, aux_layers=aux_layers)
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
        f"this checkpoint can be read in {len(combinations)} ways ({', '.join(names)}); drafting the "
        "target's own text with each"
    )
    texts = own_texts(target, sorted({layer for found in layers.values() for layer in found}))
    measured = []
    with tempfile.TemporaryDirectory(prefix=".eaglecpp-readings-", dir=folder) as work:
        for index, readings in enumerate(combinations):
            path = Path(work) / f"{index}.gguf"
            convert.convert_checkpoint(src, target, path, readings=given | readings, **options)
            measured.append(Measured(readings, expected_lengths(path, target, layers[index], texts)))
            path.unlink()
    return measured


def own_texts(target: Path, layers: Sequence[int]) -> list[OwnText]:
    """What the target answers to the built-in prompts, greedily, with its features. Raises EagleError."""
    from eaglecpp.engine.engine import Engine

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
        found = []
        for ids, tokens in written:
            features, _ = runner.forward(tokens, want_logits=False)
            found.append(OwnText(tokens, len(ids), dict(zip(layers, features, strict=True))))
    finally:
        drain()
    return found


_ROOM = 512
"""Of the longest prompt and its answer, with a chat template around it."""


def _prompt(engine: Any, text: str) -> list[int]:
    """The question as the model is asked, or the text alone where it has no usable template."""
    try:
        ids: list[int] = engine.chat_prompt([{"role": "user", "content": text}])
    except EagleError:
        ids = engine.tokenize(text)
    return ids


def expected_lengths(
    draft: Path, target: Path, layers: Sequence[int], texts: Sequence[OwnText]
) -> NDArray[np.float64]:
    """`Measured.lengths` of a drafter. layers: the boundary ids that it reads, in their order."""
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
        if first > 1:  # row p embeds the token behind it
            drafter.append(np.ascontiguousarray(features[:, : first - 1]), tokens[1:first])
        for row in range(first - 1, len(tokens) - DEPTH - STRIDE, STRIDE):
            rows = np.ascontiguousarray(features[:, row : row + STRIDE])
            lengths.append(1.0 + _expected(drafter, rows, tokens[row + 1 : row + STRIDE + DEPTH + 1], rank))
    drain()
    if not lengths:
        raise EagleError(f"{target}: the context is too short to draft {DEPTH} tokens of an answer")
    return np.array(lengths)


def _expected(drafter: Drafter, features: Array, tokens: Sequence[int], rank: Mapping[int, int]) -> float:
    """Drafts in a row that can be expected behind some rows. tokens: those that the rows embed, then what the
    drafts should be.
    """
    n_rows = features.shape[1]
    embedded, wanted = tokens[:n_rows], tokens[n_rows:]
    n_slots = min(DEPTH, drafter.info["n_parallel"])
    if n_slots and drafter.info["arch"].startswith("dflash"):  # a slot may depend on the token before it
        slots = drafter.block(features, embedded, wanted[: n_slots - 1], _CANDIDATES)
        found = [{token: math.exp(p) for token, p, _ in slot if math.isfinite(p)} for slot in slots]
        chances = [one.get(token, 0.0) for one, token in zip(found, wanted, strict=False)]
        return float(np.cumprod(chances).sum())
    if n_slots:
        rows = drafter.commit_ahead(features, embedded, n_slots - 1)
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
    return chance if np.isfinite(chance) else 0.0  # a reading may be so wrong that nothing comes out


def _shared_tables(
    file: DraftFile, target: Path, texts: Sequence[OwnText]
) -> tuple[Array | None, Array | None]:
    """The target's embeddings and head, where the drafter has none: of the embeddings the rows that occur, so
    that the others cost no memory.
    """
    from eaglecpp.convert import read_gguf, read_rows, read_tensor

    own = {tensor["name"] for tensor in file.tensors}
    if {"token_embd.weight", "output.weight"} <= own:
        return None, None
    model = read_gguf(target)
    table, head = None, None
    if "token_embd.weight" not in own:
        table = np.zeros((file.info["n_vocab"], file.info["n_embd"]), np.float32)
        for token in {token for text in texts for token in text.tokens}:
            table[token] = read_rows(model, "token_embd.weight", token, token + 1)[0]
    if "output.weight" not in own:
        name = "output.weight" if "output.weight" in model.tensors else "token_embd.weight"
        head = read_tensor(model, name)
    return table, head


def _reasons(best: Measured, measured: Sequence[Measured], choices: Sequence[Choice]) -> dict[str, str]:
    """For the file: why each choice has the value that it has."""
    found = {}
    for choice in choices:
        others = [
            one
            for one in measured
            if one.readings[choice.name] != best.readings[choice.name]
            and all(one.readings[c.name] == best.readings[c.name] for c in choices if c is not choice)
        ]
        if not others:
            found[choice.name] = "the only one that can be converted"
            continue
        other = max(others, key=lambda one: one.mean)
        told = f"{best.mean:.2f} tokens in a row, {other.mean:.2f} with {other.readings[choice.name]}"
        found[choice.name] = (
            f"measured: {told}" if best.leads(other) else f"default, measured as no worse: {told}"
        )
    return found


def _table(measured: Sequence[Measured], best: Measured | None) -> list[str]:
    """For people."""
    rows = [(", ".join(f"{k}={v}" for k, v in one.readings.items()), one) for one in measured]
    width = max(len(name) for name, _ in rows)
    n_places = len(measured[0].lengths)
    lines = [f"{'reading':<{width}}  tokens in a row, over {n_places} places"]
    for name, one in rows:
        mark = "  <- taken" if one is best else ""
        lines.append(f"{name:<{width}}  {one.mean:.3f}{mark}")
    if best is None:
        lines.append("no reading is better by more than chance, and there is no default")
    return lines
