# SPDX-License-Identifier: MIT
"""The targets of `compare.py`: a small trained one padded to two shapes and quantised, or a file.

*wide* is bound by memory as real models are, *deep* stays in the cache and is bound by arithmetic. Both
compute what the small one does. They are made once, under a temporary name until complete, and reused as long
as they are newer than their sources; copies of the drafters get the layer ids of the padded targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from common import note
from pad_target import Plan, make_plan, move_drafter, pad, quantise

SHAPES: dict[str, tuple[int, int | None]] = {"wide": (24, 12288), "deep": (96, None)}  # layers, feed-forward
# the fastest first: what they leave of the time goes to the slower ones
TARGETS = ("deep-Q4_0", "deep-Q8_0", "wide-Q4_0", "wide-Q8_0")


@dataclass(frozen=True)
class BenchmarkTarget:
    """A target and its drafters by the architecture of their file; any but EAGLE's is a small model."""

    name: str
    path: Path
    drafts: Mapping[str, Path]


def drafters_by_kind(paths: list[Path]) -> dict[str, Path]:
    """Raises `SystemExit` for a second one of a kind."""
    found: dict[str, Path] = {}
    for path in paths:
        reader = gguf.GGUFReader(path)
        architecture = reader.get_field("general.architecture")
        kind = str(architecture.contents()) if architecture else path.stem
        if any(tensor.name.endswith(".nextn.eh_proj.weight") for tensor in reader.tensors):
            kind = "mtp"  # heads, of the target's own file or of another
        if kind == "dflash" and any(tensor.name == "markov_w1.weight" for tensor in reader.tensors):
            kind = "dspark"
        if kind in found:
            raise SystemExit(f"{path} and {found[kind]} are both {kind} drafters: give one of each kind")
        found[kind] = path
    return found


def block_size(draft: Path) -> int:
    """Rows of a block of a drafter that llama.cpp reads; what it takes where the file says nothing."""
    field = gguf.GGUFReader(draft).get_field("dflash.block_size")
    return int(field.contents()) if field else 16


def shuffled(draft: Path, out: Path) -> Path:
    """A copy whose output rows stand in random order, so that it is confidently wrong."""
    data = bytearray(draft.read_bytes())
    tensor = next(t for t in gguf.GGUFReader(draft).tensors if t.name == "output.weight")
    begin, size = int(tensor.data_offset), int(tensor.n_bytes)
    # quantised rows are whole bytes
    matrix = np.frombuffer(data, np.uint8, size, begin).reshape(int(tensor.shape[1]), -1)
    data[begin : begin + size] = matrix[np.random.default_rng(1).permutation(len(matrix))].tobytes()
    out.write_bytes(data)
    return out


def make_target(
    name: str, source: Path, drafts: Mapping[str, Path], folder: Path, n_threads: int
) -> BenchmarkTarget:
    """One of `TARGETS` in `folder`, with its drafters; what is missing or older than its source is made."""
    shape, _, kind = name.partition("-")
    if name not in TARGETS:
        raise SystemExit(f"target {name!r}: expected some of {', '.join(TARGETS)}")
    folder.mkdir(parents=True, exist_ok=True)
    plan = make_plan(gguf.GGUFReader(source), *SHAPES[shape])
    path = folder / f"{name}.gguf"
    if _is_stale(path, source):
        _quantised(source, path, plan, shape, kind, n_threads)
    moved = {}
    for draft_kind, draft in drafts.items():
        moved[draft_kind] = folder / f"{shape}-{draft_kind}.gguf"
        if _is_stale(moved[draft_kind], draft):
            move_drafter(draft, moved[draft_kind], plan)
    return BenchmarkTarget(name, path, moved)


def _quantised(source: Path, path: Path, plan: Plan, shape: str, kind: str, n_threads: int) -> None:
    padded = path.with_name(f"{shape}-unquantised.gguf")
    note(f"making {path.name}")
    if _is_stale(padded, source):
        pad(source, padded, plan)
    partial = path.with_name(path.name + ".part")
    quantise(padded, partial, kind, n_threads)
    partial.replace(path)


def _is_stale(path: Path, source: Path) -> bool:
    return not path.exists() or path.stat().st_mtime < source.stat().st_mtime
