# SPDX-License-Identifier: MIT
"""`Rounds`: what verification told about the drafts of one text; labels that no text holds.

A drafter is taught by the target's distribution behind the tokens of a text. Verification gives it behind
rejected drafts too, for nothing: there the drafter sees where its own tokens lead (Draft-OPD, arXiv
2605.29343). One file for a text, numpy's `.npz`, named by the hash of the text's tokens.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eaglecpp.errors import DataError
from eaglecpp.files import replace_bytes

__all__ = ["N_RECORDED", "Rounds", "find_rounds", "rounds_name"]

N_RECORDED = 64
"""Likeliest tokens behind a rejected draft; as many as are kept behind a text's token."""


@dataclass(frozen=True)
class Rounds:
    """The drafts of one text.

    tokens:   i32 [S], prompt and answer; n_prompt: of the prompt
    root:     i32 [R], the place among them of each round's last known token, which its drafts follow
    n_drafts: i32 [R], how many these were
    token:    i32 [D], all drafts; parent: i32 [D], 0 = the round's root, n = its n-th draft
    accepted: bool [D]
    ids:      i32 [M, n], the target's likeliest next tokens behind each draft that was not accepted, best
              first; logp: f32 [M, n], logarithms of their probabilities in the whole vocabulary
    """

    tokens: NDArray[np.int32]
    n_prompt: int
    root: NDArray[np.int32]
    n_drafts: NDArray[np.int32]
    token: NDArray[np.int32]
    parent: NDArray[np.int32]
    accepted: NDArray[np.bool_]
    ids: NDArray[np.int32]
    logp: NDArray[np.float32]

    @classmethod
    def of(cls, tokens: ArrayLike, n_prompt: int, verified: Mapping[str, NDArray[Any]]) -> Self:
        """From what the engine recorded (`_core.Engine.verified`), without rounds behind the text's end."""
        text = np.asarray(tokens, np.int32)
        n = int(np.searchsorted(verified["root"], len(text) - 1))
        n_drafts = verified["n_drafts"][:n]
        accepted = verified["accepted"][: n_drafts.sum()].astype(np.bool_)
        n_rejected = int((~accepted).sum())
        return cls(
            text,
            n_prompt,
            verified["root"][:n],
            n_drafts,
            verified["token"][: len(accepted)],
            verified["parent"][: len(accepted)],
            accepted,
            verified["ids"][:n_rejected],
            verified["logp"][:n_rejected],
        )

    def write(self, folder: Path) -> Path:
        """Writes the file of this text, in one step."""
        arrays = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        arrays["logp"] = self.logp.astype(np.float16)
        out = io.BytesIO()
        np.savez(out, allow_pickle=False, **arrays)
        path = folder / rounds_name(self.tokens)
        replace_bytes(path, out.getvalue(), mode=0o600)
        return path

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Raises DataError for a file that is not one of these, or whose numbers do not fit together."""
        try:
            with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as found:
                given = {field.name: found[field.name] for field in fields(cls)}
            rounds = cls(**given | {"n_prompt": int(given["n_prompt"])})
            rounds = cls(**vars(rounds) | {"logp": given["logp"].astype(np.float32)})
            fault = rounds._fault()
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            fault = str(error) or type(error).__name__
        if fault:
            raise DataError(f"{path}: expected the verified drafts of a text, found {fault}; delete the file")
        return rounds

    def _fault(self) -> str:
        """What is wrong with the numbers, "" = nothing."""
        sizes = (len(self.tokens), len(self.root), len(self.token), len(self.ids))
        n_text, n_rounds, n_drafts, n_rejected = sizes
        shapes = {
            "tokens": (np.int32, (n_text,)),
            "root": (np.int32, (n_rounds,)),
            "n_drafts": (np.int32, (n_rounds,)),
            "token": (np.int32, (n_drafts,)),
            "parent": (np.int32, (n_drafts,)),
            "accepted": (np.bool_, (n_drafts,)),
            "ids": (np.int32, (n_rejected, self.ids.shape[-1])),
            "logp": (np.float32, self.ids.shape),
        }
        for name, (dtype, shape) in shapes.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != shape:
                return f"{name} of {array.dtype} {array.shape}"
        if not 0 <= self.n_prompt <= n_text or min(self.tokens.min(initial=0), self.ids.min(initial=0)) < 0:
            return "a negative token, or a prompt longer than its text"
        if (np.diff(self.root, prepend=0) < 0).any() or self.root.max(initial=-1) >= n_text:
            return "rounds outside the text"
        if (self.n_drafts < 1).any() or self.n_drafts.sum() != n_drafts:
            return f"{self.n_drafts.sum()} drafts in the rounds and {n_drafts} tokens"
        place = np.arange(n_drafts) - np.repeat(np.cumsum(self.n_drafts) - self.n_drafts, self.n_drafts)
        if (self.parent < 0).any() or (self.parent > place).any() or self.token.min(initial=0) < 0:
            return "drafts before their parents"
        if (~self.accepted).sum() != n_rejected:
            return f"{(~self.accepted).sum()} rejected drafts and labels of {n_rejected}"
        return ""


def find_rounds(folder: Path, tokens: NDArray[np.int32]) -> Rounds | None:
    """Those of a text. Raises DataError for a damaged file."""
    path = folder / rounds_name(tokens)
    return Rounds.read(path) if path.exists() else None


def rounds_name(tokens: NDArray[np.int32]) -> str:
    """The name of a text's file."""
    return hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()[:32] + ".npz"
