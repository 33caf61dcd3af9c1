# SPDX-License-Identifier: MIT
"""`convert_checkpoint` opens a checkpoint, recognises its dialect, checks it, plans the tensors, writes the
file and renames it, in this order.

Tensors get canonical names first: prefixes are removed, unused buffers are dropped, and the norm before
attention in later layers is renamed. A tied head is added as a tensor. Nothing is written before all checks
have passed, and the output file gets its name only when it is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from .build_spec import build_spec, find_choices, without_padding
from .checkpoint import Checkpoint, open_checkpoint
from .config import flag
from .dialects import Dialect, Seen, recognise
from .errors import CheckpointError, ConfigError, EagleError, TensorError, WriteError
from .gguf_file import read_gguf
from .mapping import MappedTensor, check_tensors, slots
from .metadata import build_metadata
from .parallel import MASK_FEATURE
from .quantize import TypePlan, file_type, parse_type
from .readings import Choice, Options, Reading, read_as
from .spec import DraftSpec
from .stream import N_WORKERS, TensorReport, TensorStream
from .target_info import TargetInfo, open_target
from .tensor import TensorSource
from .vocab_map import absolute_ids, check_head
from .writer import replace_file, write_gguf


@dataclass(frozen=True)
class ConvertReport:
    """Result of a conversion. family: name of the recognised dialect; type: the requested tensor type; size:
    bytes of the written file.
    """

    out: Path
    spec: DraftSpec
    family: str
    type: str
    size: int
    tensors: tuple[TensorReport, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """Progress of a conversion.

    what: the tensor or activity; done, total: bytes of tensors that are written so far, and in total (total
        0: not yet known)
    """

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class DraftCheckpoint:
    """A parsed and checked checkpoint, ready for writing.

    family: the trainer or exporter; sources: tensors by canonical name; ids: target id of each draft id, None
        if draft ids and target ids are equal
    """

    spec: DraftSpec
    family: str
    sources: Mapping[str, TensorSource]
    slots: tuple[MappedTensor, ...]
    ids: npt.NDArray[np.int64] | None
    notes: tuple[str, ...]


def open_drafter(src: str | Path, target: str | Path, **reading: Unpack[Reading]) -> DraftCheckpoint:
    """Reads and checks a checkpoint without converting it. Takes the arguments of `convert_checkpoint` and
    raises the same errors.
    """
    return _understand(open_checkpoint(src), open_target(target), Options.of(**reading))


def open_choices(src: str | Path, target: str | Path, **reading: Unpack[Reading]) -> tuple[Choice, ...]:
    """Returns the checkpoint's ambiguities that the arguments do not resolve. Takes the arguments of
    `convert_checkpoint` and raises the same errors, but makes fewer checks.
    """
    options = Options.of(**reading)
    checkpoint = open_checkpoint(src)
    seen = Seen.of(checkpoint.config, checkpoint.tensors)
    dialect = recognise(seen)
    return find_choices(seen, dialect, dialect.flatten(seen), open_target(target), options)


def convert_checkpoint(
    src: str | Path,
    target: str | Path,
    out: str | Path | None = None,
    type: str = "Q8_0",
    *,
    progress: Callable[[Progress], None] | None = None,
    hub_id: str | None = None,
    share_head: bool = False,
    **reading: Unpack[Reading],
) -> ConvertReport:
    """Converts a checkpoint of an EAGLE or block drafter to a GGUF.

    src: checkpoint directory, weight file or a drafter's GGUF.
    target: the target's GGUF.
    out: default `<name>-<TYPE>.gguf` in the current directory; an existing file is replaced at the end.
    type: a name in `quantize.TYPES`.
    hub_id: Hub id from which the directory `src` was downloaded; recorded as the source.
    share_head: leave out the head; only valid for a head that is a copy of the target's head.
    reading: values for ambiguities of the checkpoint, see `Reading`.

    Raises EagleError (a subclass per cause), and InvalidValueError for an invalid `reading`.
    """
    options = Options.of(**reading)
    on_progress = progress or (lambda _: None)
    types = parse_type(type)
    checkpoint = open_checkpoint(src)
    if hub_id is not None:
        checkpoint = replace(checkpoint, name=hub_id, from_hub=True)
    target_info = open_target(target)
    destination = _destination(out, checkpoint, target_info, types)
    if share_head:
        checkpoint = replace(
            checkpoint,
            tensors={n: t for n, t in checkpoint.tensors.items() if not n.endswith("lm_head.weight")},
        )
    drafter = _understand(checkpoint, target_info, options)
    spec, done = drafter.spec, 0
    with ThreadPoolExecutor(N_WORKERS) as pool:
        stream = TensorStream(spec, types, drafter.sources, drafter.ids, pool)
        tensors = stream.plan(drafter.slots)
        total = sum(tensor.n_bytes for tensor in tensors)
        on_progress(Progress("hashing the source", 0, total))
        fields = build_metadata(
            spec,
            checkpoint,
            target_info,
            file_type=file_type(types),
            n_params=sum(math.prod(tensor.shape) for tensor in tensors),
            sha256=checkpoint.sha256(),
        )

        def advance(name: str, n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            on_progress(Progress(name, done, total))

        with replace_file(destination) as temporary:
            write_gguf(temporary, spec.architecture, fields, tensors, advance)
            size = read_gguf(temporary).size  # reading the file again also checks that the file is complete
    reports = tuple(map(TensorReport.of, tensors))
    return ConvertReport(destination, spec, drafter.family, types.body.name, size, reports, drafter.notes)


def _destination(out: str | Path | None, checkpoint: Checkpoint, target: TargetInfo, types: TypePlan) -> Path:
    path = Path(out) if out is not None else Path(f"{checkpoint.short_name}-{types.body.name}.gguf")
    if path.is_dir():
        raise WriteError(f"{path}: this is a directory; give a file name")
    if not path.parent.is_dir():
        raise WriteError(f"{path}: directory {path.parent} does not exist")
    if path.exists() and any(path.samefile(source) for source in (*checkpoint.files, target.path)):
        raise WriteError(f"{path}: the conversion reads this file; choose another output file")
    return path


def _understand(checkpoint: Checkpoint, target: TargetInfo, options: Options) -> DraftCheckpoint:
    """Recognises the checkpoint and runs every check that does not need to read the weights."""
    try:
        return _checked(checkpoint, target, options)
    except EagleError as error:
        if checkpoint.general is None or str(checkpoint.files[0]) in str(error):
            raise
        raise type(error)(
            f"{checkpoint.files[0]}: its keys, read as config.json, have an error: {error}"
        ) from error


def _checked(checkpoint: Checkpoint, target: TargetInfo, options: Options) -> DraftCheckpoint:
    tensors = checkpoint.tensors
    seen = Seen.of(checkpoint.config, tensors)
    dialect = recognise(seen)
    dialect.check(tensors)
    config = dialect.flatten(seen)
    sources = dialect.adapted(canonical_tensors(tensors, config, dialect), config)
    sources = without_padding(sources, config, target)
    shapes = {name: source.shape for name, source in sources.items()}
    spec, readings, notes = build_spec(seen, dialect, shapes, target, options)
    sources = read_as(sources, readings)
    shapes = {name: source.shape for name, source in sources.items()}
    expected = slots(spec, shapes)
    check_tensors(expected, shapes, dialect.title)
    ids, map_note = absolute_ids(
        _small(sources, "d2t"), _small(sources, "t2d"), spec.draft_vocab_size, spec.vocab_size
    )
    present = tuple(slot for slot in expected if slot.required or slot.source in sources)
    blockers = ", ".join(spec.stock_blockers)
    all_notes = (
        *checkpoint.notes,
        *notes,
        map_note,
        *_vocabulary_notes(ids, sources, target),
        f"written as {spec.architecture}, which llama.cpp does not run, because the drafter has: {blockers}"
        if blockers
        else "",
    )
    return DraftCheckpoint(
        spec, dialect.title, sources, present, ids, tuple(note for note in all_notes if note)
    )


def _vocabulary_notes(
    ids: npt.NDArray[np.int64] | None, sources: Mapping[str, TensorSource], target: TargetInfo
) -> tuple[str, ...]:
    if ids is None:
        return ()
    note = ""
    if target.eos_token_id is not None and target.eos_token_id not in ids:
        note = f"the target's end-of-sequence token {target.eos_token_id} is outside the draft vocabulary"
    head = check_head(sources["lm_head.weight"], ids, target.head) if target.head else ""
    return note, head


def _small(sources: Mapping[str, TensorSource], name: str) -> npt.NDArray[Any] | None:
    return sources[name].read() if name in sources else None


Sources = dict[str, TensorSource]


def canonical_tensors(
    tensors: Mapping[str, TensorSource], config: Mapping[str, Any], dialect: Dialect
) -> Sources:
    """Returns the checkpoint's tensors by canonical name. config: the flattened config. Raises
    CheckpointError, TensorError, ConfigError.
    """
    sources: Sources = {}
    for name, source in tensors.items():
        canonical = dialect.canonical(name)
        if canonical is None:
            continue
        if canonical in sources:
            raise CheckpointError(
                f"tensors {sources[canonical].name} and {name} have the same role; remove one"
            )
        sources[canonical] = source
    if MASK_FEATURE in sources:  # the checkpoint has the shape [1, 1, n] or [1, n]
        source = sources[MASK_FEATURE]
        sources[MASK_FEATURE] = replace(source, shape=(math.prod(source.shape),))
    return _tie_head(_one_attention_norm(sources), config)


def _one_attention_norm(sources: Sources) -> Sources:
    """Renames the norm before attention in layers after the first to one name. Exporters name it
    input_layernorm or hidden_norm.
    """
    renamed: Sources = {}
    for name, source in sources.items():
        layer, separator, suffix = name.rpartition(".hidden_norm")
        wanted = f"{layer}.input_layernorm{suffix}"
        if not separator or layer == "layers.0":
            renamed[name] = source
        elif wanted in sources:
            raise TensorError(f"tensors {name} and {wanted}: expected one norm before attention, found both")
        else:
            renamed[wanted] = source
    return renamed


def _tie_head(sources: Sources, config: Mapping[str, Any]) -> Sources:
    """Adds the embedding table as the head if the config ties the head to the embeddings and the file has no
    head. A head in the file is always used: trainers copy the key tie_word_embeddings from the target's
    config, and a head with a row per draft token cannot be tied.
    """
    if not flag(config, "tie_word_embeddings") or "lm_head.weight" in sources:
        return sources
    if "embed_tokens.weight" not in sources:
        raise ConfigError(
            "config.json: tie_word_embeddings is true, but the checkpoint has no embed_tokens.weight. Add "
            "this tensor, or set tie_word_embeddings to false if the drafter uses the target's head"
        )
    return {**sources, "lm_head.weight": sources["embed_tokens.weight"]}
