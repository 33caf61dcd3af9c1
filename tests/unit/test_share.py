# SPDX-License-Identifier: MIT
"""`bench --share`: what a record says, which ones are refused, and the page made of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from eaglecpp import Engine
from eaglecpp.bench.share import HEAD, cells, fault, file_name, measure_pair, over_llama
from eaglecpp.errors import InvalidValueError

if TYPE_CHECKING:
    from conftest import Models

RECORD: dict[str, Any] = {
    "schema": 2,
    "date": "2026-11-26",
    "target": {"name": "a", "architecture": "llama", "file_type": "Q4_1", "bytes": 5, "sha256": "0" * 64},
    "drafter": {"name": "b", "architecture": "eagle31", "file_type": "Q4_1", "bytes": 5, "sha256": "1" * 64},
    "machine": {
        "cpu": "AMD EPYC", "gpus": [], "target_on": "CPU", "drafter_on": "CPU", "kernels": "avx2 (chosen)",
        "cores": 2, "threads": 2, "memory_gib": 24, "system": "Linux x86_64",
    },
    "settings": {
        "interleaved": True, "repeats": 3, "tokens": 96, "questions": 3, "chat_template": True,
        "context": 4096, "same_text": True,
    },
    "tokens_per_second": {
        "llama": [100.0, 104.0, 98.0], "plain": [200.0, 210.0, 190.0], "chain:5": [300.0, 310.0, 290.0],
        "auto": [330.0, 340.0, 310.0], "auto, 0.8": [300.0, 310.0, 290.0],
    },
    "row_ms": {"1": 3.2, "2": 3.2, "4": 3.3, "8": 3.9, "16": 6.0},
    "acceptance_length": 2.6,
    "acceptance_per_depth": [0.6, 0.6, 0.7, 0.7, 0.7],
    "versions": {"eaglecpp": "0.1.0", "llama_cpp_python": "0.3.36", "ggml": "0c1e570", "python": "3.11.2"},
}  # fmt: skip


def test_a_pair_is_measured_in_turns_and_says_nothing_of_its_user(models: Models) -> None:
    with Engine.open(models.target, models.draft, n_ctx=256) as engine:
        record = json.loads(json.dumps(measure_pair(engine, n_repeats=3, n_tokens=16)))
    assert "something else was running" in fault(record) or not fault(record)
    record["tokens_per_second"] |= RECORD["tokens_per_second"]  # this machine may be busy
    assert not fault(record)
    assert all(len(found) == 3 for found in record["tokens_per_second"].values())
    assert str(models.target.parent) not in json.dumps(record) and len(cells(record)) == len(HEAD)
    with (
        Engine.open(models.target, strategy="off", n_ctx=256) as engine,
        pytest.raises(InvalidValueError, match="a pair has a drafter"),
    ):
        measure_pair(engine)


def test_a_row_tells_the_middle_of_the_turns_and_their_spread() -> None:
    assert not fault(RECORD)
    assert over_llama(RECORD, "plain") == pytest.approx((190 / 98, 2.0, 210 / 104))
    row = dict(zip(HEAD, cells(RECORD), strict=True))
    assert row["plain"] == "2.00 (1.94 to 2.02)" and row["machine"] == "AMD EPYC, avx2 (chosen), 2 threads"
    assert file_name(RECORD) == "a-q4-1-amd-epyc-avx2-chosen.json"


def changed(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (changed("schema", to=1), "schema 1"),
        (changed("settings", "interleaved", to=False), "runs in turns"),
        (changed("settings", "same_text", to=False), "changed a text"),
        (changed("tokens_per_second", "auto", to=[300.0]), "auto: expected a speed of each"),
        (changed("tokens_per_second", "llama", to=[100.0, 160.0, 99.0]), "something else was running"),
        (changed("tokens_per_second", "auto", to=[9e3] * 3), "times as fast"),
        (changed("target", "sha256", to="x"), "the SHA-256"),
        (changed("target", "name", to="/home/ann/model"), "no path"),
        (changed("acceptance_length", to=7.5), "acceptance length"),
        (changed("row_ms", "1", to=60.0), "16 rows for"),
        (changed("machine", to=None), "not a record"),
    ],
)
def test_what_breaks_a_rule_is_refused(change: Callable[[dict[str, Any]], None], told: str) -> None:
    record = copy.deepcopy(RECORD)
    change(record)
    assert told in fault(record)
