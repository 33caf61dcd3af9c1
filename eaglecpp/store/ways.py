# SPDX-License-Identifier: MIT
"""What can draft for a model, the best known way first, and why: what `eaglecpp drafters MODEL` says.

Known of the kinds, not measured of this model: `eaglecpp bench MODEL --draft A --draft B` compares them here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from eaglecpp.errors import EagleError
from eaglecpp.options import HEAD, TEXT
from eaglecpp.store.drafters import Match
from eaglecpp.store.facts import Facts, read_facts
from eaglecpp.store.fit import fits
from eaglecpp.store.store import Stores

__all__ = ["Way", "known_ways"]

_SMALLER = 0.25  # of the target's parameters: what a small model may have, or it costs what it saves


@dataclass(frozen=True)
class Way:
    """option: what to give on the command line."""

    what: str
    option: str
    why: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def known_ways(own: Path | None, matches: Sequence[Match], target: Facts | None) -> list[Way]:
    """own: the drafter that comes with the model; matches: those known for it; target: the model's facts,
    None where its file is not on this machine.
    """
    return list(_ways(own, matches, target))


def _ways(own: Path | None, matches: Sequence[Match], target: Facts | None) -> Iterator[Way]:
    has_head = target is not None and target.has_head
    if own is not None and target is not None and own.samefile(target.file.path):
        own = None  # its head, below
    if own is not None:
        yield Way("the drafter that comes with it", "(used)", "made for this model")
    for match in matches:
        if not match.drafter.refused:
            yield Way(
                f"EAGLE: {match.drafter.repo}",
                "--draft auto" if own is None else f"--draft hf.co/{match.drafter.repo}",
                "reads what the model has worked out; drafts trees",
            )
            break
    if has_head:
        yield Way("its own head", f"--draft {HEAD}", "was trained with the model; costs a block of it")
    if target is not None:
        for name in _small_models(target):
            yield Way(
                f"small model: {name}", f"--draft {name}", "same vocabulary; costs all of its own blocks"
            )
    yield Way("the text itself", f"--draft {TEXT}", "free; where answers repeat what was said")


def _small_models(target: Facts) -> Iterator[str]:
    """Stored models that could draft for it, the smallest first, three at most."""
    found = []
    for model in Stores.open().models():
        try:
            file = model.target_files()[0]
            facts = read_facts([file])
            if facts.n_parameters > _SMALLER * target.n_parameters or facts.is_drafter:
                continue
            if fits(file, target):
                found.append((facts.n_parameters, str(model.name)))
        except (EagleError, OSError):
            continue
    yield from (name for _, name in sorted(found)[:3])
