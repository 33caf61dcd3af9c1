# SPDX-License-Identifier: MIT
"""A measured pair as others can compare it: one target, one drafter, one machine.

`measure_pair` runs llama.cpp's own plain decoding, ours, a chain and the planner in turns, several times
over, and gives plain values without anything that names the user: no path, no host. `fault` says what keeps a
record from being published; those in benchmarks/measured, from which docs/measured.md is made, have none.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from eaglecpp._extension import core, versions
from eaglecpp.bench.llama_plain import llama_plain
from eaglecpp.bench.strategies import QUESTIONS, answer, asked, ms_per_token, plan_report, point_at
from eaglecpp.errors import InvalidValueError
from eaglecpp.log import drain
from eaglecpp.store.content import file_digest
from eaglecpp.store.facts import read_facts

if TYPE_CHECKING:
    from pathlib import Path

    from eaglecpp.engine.engine import Engine

SCHEMA = 2
CHAIN = "chain:5"
_SAMPLED = 0.8
WHO = {"plain": ("off", 0.0), CHAIN: (CHAIN, 0.0), "auto": ("auto", 0.0), "auto, 0.8": ("auto", _SAMPLED)}
"""What is compared with llama.cpp's plain decoding: strategy and temperature."""
HEAD = ("model", "drafter", "machine", "rows 1, 4, 8", "length", *WHO, "by")
_ROWS = (1, 2, 4, 8, 16)
_N_OF_ROWS = 48
_LEAST_REPEATS = 3
_QUIET = 1.2
"""The largest of the turns' ratios of plain decoding over the smallest: more, and something else was running.
Ratios, because a machine that changes its speed changes both.
"""
_TEXT = re.compile(r"[\w .:,+()@#&'-]*")
"""Of every text in a record: neither paths nor markup."""


def measure_pair(
    engine: Engine,
    *,
    n_repeats: int = 5,
    n_tokens: int = 96,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Answers to three questions in the model's chat template, `n_repeats` times. Raises InvalidValueError
    without a drafter, and where llama.cpp cannot be measured.
    """
    if engine.draft_path is None:
        raise InvalidValueError("a pair has a drafter: name one with --draft")
    info, system = engine.device_info, core.system_info()
    amx, on_gpu = system["amx"], info["target"] != ["CPU"]
    texts: dict[tuple[int, float], list[int]] = {}  # by question and temperature
    prompts, same_text = asked(engine), True
    speeds: dict[str, list[float]] = {name: [] for name in ("llama", *WHO)}
    total = None
    for turn in range(n_repeats + 1):  # the first one warms up
        progress(f"turn {turn} of {n_repeats}")
        # what they take is known to the planner then; before the first turn weights are still being packed
        for n_rows in _ROWS[1:] if turn == 1 else ():
            rows = {"temperature": 0.0, "ignore_eos": True}
            answer(engine, prompts[0], _N_OF_ROWS, f"chain:{n_rows - 1}", rows)
        llama = llama_plain(
            engine.target_path,
            info["n_threads"],
            repack=not amx["claimed"] or amx["works"],
            seconds=3.0,
            n_gpu_layers=engine.model.n_gpu_layers if on_gpu else 0,
        )
        if llama is None:
            raise InvalidValueError("llama.cpp's own plain decoding cannot be measured here")
        of_turn: dict[str, list[float]] = {name: [] for name in WHO}
        for number, prompt in enumerate(prompts):
            for at in range(len(WHO)):
                name = list(WHO)[(at + turn + number) % len(WHO)]
                strategy, temperature = WHO[name]
                said = answer(engine, prompt, n_tokens, strategy, {"temperature": temperature, "seed": 1})
                key = (number, temperature)
                same_text = same_text and texts.setdefault(key, said.tokens) == said.tokens
                of_turn[name].append(ms_per_token(said.timings))
                if name == CHAIN and turn:
                    total = said.timings if total is None else total + said.timings
        if turn:
            speeds["llama"].append(1000 / llama.ms)
            for name, found in of_turn.items():
                speeds[name].append(1000 / statistics.mean(found))
    drain()
    assert total is not None
    report = plan_report(engine) or {"verify": []}
    rows = {str(n): round(point_at(report["verify"], n)[1], 3) for n in _ROWS}
    return {
        "schema": SCHEMA,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "target": _file_facts(engine.target_path),
        "drafter": _file_facts(engine.draft_path),
        "machine": _machine(info, system),
        "settings": {
            "interleaved": True, "repeats": n_repeats, "tokens": n_tokens, "questions": len(QUESTIONS),
            "chat_template": engine.has_chat_template, "context": engine.n_ctx, "same_text": same_text,
        },
        "tokens_per_second": {name: [round(v, 2) for v in found] for name, found in speeds.items()},
        "row_ms": rows,
        "acceptance_length": round(total.acceptance_length, 3),
        "acceptance_per_depth": [round(rate, 3) for rate in total.accepted_per_depth],
        "versions": {"eaglecpp": version("eaglecpp"), "llama_cpp_python": versions()["llama_cpp_python"],
                     "ggml": versions()["ggml_commit"], "python": platform.python_version()},
    }  # fmt: skip


def _file_facts(path: Path) -> dict[str, Any]:
    facts = read_facts([path])
    return {
        "name": path.stem,
        "architecture": facts.architecture,
        "file_type": facts.file_type,
        "bytes": path.stat().st_size,
        "sha256": file_digest(path).removeprefix("sha256:"),
    }


def _machine(info: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, Any]:
    import psutil

    devices = system["devices"]
    kernels = system["kernels"]
    forced = os.environ.get("EAGLECPP_KERNELS", "")
    return {
        "cpu": next((d["description"] for d in devices if d["kind"] == "cpu"), platform.machine()),
        "gpus": [d["description"] for d in devices if d["kind"] != "cpu"],
        "target_on": ", ".join(info["target"]),
        "drafter_on": info["draft"],
        "kernels": (kernels["table"] if kernels["active"] else "ggml") + (" (chosen)" if forced else ""),
        "cores": system["n_cores"],
        "threads": info["n_threads"],
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
    }


def over_llama(record: Mapping[str, Any], name: str) -> tuple[float, float, float]:
    """Speed over llama.cpp's plain decoding of the same turn: least, median, most."""
    found = record["tokens_per_second"]
    ratios = sorted(own / plain for own, plain in zip(found[name], found["llama"], strict=True))
    return ratios[0], statistics.median(ratios), ratios[-1]


def cells(record: Mapping[str, Any], by: str = "") -> list[str]:
    """The record as a row under `HEAD`."""
    target, drafter, machine = record["target"], record["drafter"], record["machine"]
    place = f"{machine['cpu']}, {machine['kernels']}"
    if machine["target_on"] != "CPU":
        place = ", ".join(machine["gpus"])
    costs = [record["row_ms"][str(n)] for n in (1, 4, 8)]
    factors = []
    for name in WHO:
        least, middle, most = over_llama(record, name)
        factors.append(f"{middle:.2f} ({least:.2f} to {most:.2f})")
    return [
        f"{target['name']} {target['file_type']}",
        f"{drafter['name']} {drafter['file_type']}",
        f"{place}, {machine['threads']} threads",
        ", ".join(f"{ms:.2g}" for ms in costs) + " ms",
        f"{record['acceptance_length']:.2f}",
        *factors,
        by or record["date"],
    ]


def file_name(record: Mapping[str, Any]) -> str:
    """What to call the file of a record."""
    machine = record["machine"]
    words = (record["target"]["name"], record["target"]["file_type"], machine["cpu"], machine["kernels"])
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-") + ".json"


def fault(record: Any) -> str:
    """Why a record cannot be published, "" = it can: its form, and whether its numbers go together."""
    try:
        return _form(record) or _plausibility(record)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        return f"not a record of schema {SCHEMA}: {error!r}"


def _form(record: Mapping[str, Any]) -> str:
    if record["schema"] != SCHEMA:
        return f"schema {record['schema']}: expected {SCHEMA}"
    datetime.strptime(record["date"], "%Y-%m-%d").replace(tzinfo=UTC)
    for name in ("target", "drafter"):
        if not re.fullmatch(r"[0-9a-f]{64}", record[name]["sha256"]) or record[name]["bytes"] < 1:
            return f"{name}: expected the size and the SHA-256 of a file"
    stack: list[Any] = [record]
    while stack:
        one = stack.pop()
        if isinstance(one, Mapping):
            stack += [*one, *one.values()]
        elif isinstance(one, list):
            stack += one
        elif isinstance(one, str) and not _TEXT.fullmatch(one):
            return f"text {one[:60]!r}: expected letters, digits, and no path"
    return ""


def _plausibility(record: Mapping[str, Any]) -> str:
    settings, speeds = record["settings"], record["tokens_per_second"]
    if not settings["interleaved"] or settings["repeats"] < _LEAST_REPEATS:
        return f"expected runs in turns, at least {_LEAST_REPEATS} of each"
    if not settings["same_text"]:
        return "drafting changed a text: that is a fault to report, not a figure to share"
    for name in ("llama", *WHO):
        found = speeds[name]
        if len(found) != settings["repeats"] or not all(0.01 < one < 1e6 for one in found):
            return f"{name}: expected a speed of each of {settings['repeats']} turns"
    least, _, most = over_llama(record, "plain")
    if most > _QUIET * least:
        return (
            f"plain decoding was {least:.2f} to {most:.2f} times as fast as llama.cpp's: something else was "
            "running; close it and measure again"
        )
    rates, length = record["acceptance_per_depth"], record["acceptance_length"]
    if not 1.0 <= length <= 6.0 or not all(0.0 <= rate <= 1.0 for rate in rates):
        return f"acceptance length {length} of chains of five, rates {rates}"
    costs = [record["row_ms"][str(n)] for n in _ROWS]
    if not 0 < costs[0] <= 1.5 * costs[-1]:
        return f"16 rows for {costs[-1]} ms where one takes {costs[0]}"
    cells(record)  # has all that the table shows
    factor = max(speeds["auto"]) / min(speeds["plain"])
    if factor > 1.5 * 6.0:
        return f"auto {factor:.1f} times as fast as plain decoding"
    return ""
