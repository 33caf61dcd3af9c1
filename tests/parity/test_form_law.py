# SPDX-License-Identifier: MIT
"""Tests that answers under random schemas and grammars are the same with and without drafting, at the default
settings.
"""

from __future__ import annotations

import pytest

from eaglecpp import Engine
from helpers.form_law import STRATEGIES, compare_answers
from helpers.http_server import DRAFT, TARGET


@pytest.mark.parametrize("has_drafter", [True, False])
def test_drafting_changes_no_answer(has_drafter: bool) -> None:
    strategies = STRATEGIES if has_drafter else ["auto", "chain:3"]
    with Engine.open(TARGET, draft=DRAFT if has_drafter else None, n_ctx=512, n_threads=1) as engine:
        found = compare_answers(engine, 20, 7, strategies)
    assert not found.differ
    assert found.n_rounds < 0.95 * found.n_tokens and found.n_cancelled > 0
