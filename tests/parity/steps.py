# SPDX-License-Identifier: MIT
"""Runs a native drafter and a reference over the same rows and compares them step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from eaglecpp.lowlevel import Drafter
from helpers.reference.drafter import Drafter as ReferenceDrafter

# Both sides compute in fp32, so only the order of summation differs.
TOLERANCE = 1e-3
CHUNKS = (1, 7, 20, 3, 17)
N_STEPS = 8


@dataclass(frozen=True)
class Difference:
    """Largest absolute differences between native drafter and reference in one draft step. Step 0 is the last
    committed row.
    """

    step: int
    logits: float
    state: float


def gap(native: np.ndarray, reference: torch.Tensor) -> float:
    """Returns the largest absolute difference of two arrays."""
    return float(np.abs(native - reference.numpy()).max())


def commit_chunks(
    native: Drafter, reference: ReferenceDrafter, features: np.ndarray, tokens: list[int]
) -> list[tuple[np.ndarray, np.ndarray, torch.Tensor, torch.Tensor]]:
    """Commits the same rows to the native drafter and the reference, in uneven chunks. Returns both outputs
    after each chunk.
    """
    outputs, start = [], 0
    for n_rows in CHUNKS:
        rows = slice(start, start + n_rows)
        part = np.ascontiguousarray(features[:, rows])
        outputs.append(
            (*native.commit(part, tokens[rows]), *reference.commit(torch.from_numpy(part), tokens[rows]))
        )
        start += n_rows
    return outputs


def compare_steps(
    native: Drafter, reference: ReferenceDrafter, rows: tuple[np.ndarray, list[int]], teacher_forced: bool
) -> list[Difference]:
    """Commits all rows, then drafts for `N_STEPS - 1` steps. Returns the differences between native drafter
    and reference in each step.

    In teacher-forced mode, both drafters get the reference's state and token at each step, so an earlier
    difference cannot hide a later difference. In free-running mode, each drafter gets its own state, and both
    get the reference's tokens.
    """
    committed = commit_chunks(native, reference, *rows)
    logits, state, ref_logits, ref_state = committed[-1]
    found = [
        Difference(0, max(gap(n, r) for n, _, r, _ in committed), max(gap(n, r) for _, n, _, r in committed))
    ]
    for step in range(1, N_STEPS):
        token = int(reference.target_ids[ref_logits.argmax()])
        fed = ref_state.numpy() if teacher_forced else state
        out, states = native.extend(fed[None], [token], [step - 2])
        ref_out, ref_states = reference.extend(ref_state[None], [token], [step - 2], step)
        logits, state, ref_logits, ref_state = out[0], states[0], ref_out[0], ref_states[0]
        found.append(Difference(step, gap(logits, ref_logits), gap(state, ref_state)))
    return found
