# SPDX-License-Identifier: MIT
"""Formats the output of `eaglecpp bench --share`: a measurement as a TOML table, without paths or names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from typing import Any

from eaglecpp.bench.strategies import Speeds
from eaglecpp.engine.engine import Engine
from eaglecpp.options import TEXT
from eaglecpp.store.facts import read_facts


def shared_block(engine: Engine, measured: Sequence[Speeds], machine: Mapping[str, Any]) -> str:
    """Returns a table for docs/hardware.toml. machine: the facts that `eaglecpp.cli.doctor.native_facts`
    returns.
    """
    target, drafter = read_facts([engine.target_path]), engine.draft_info
    devices = [one for one in machine["devices"] if one["kind"] != "cpu"]
    # llama.cpp describes a remote device by its address, which must not be published
    gpus = ["RPC" if one["name"].startswith("RPC") else one["description"] for one in devices]
    cpu = next((one["description"] for one in machine["devices"] if one["kind"] == "cpu"), "")
    head = {
        "date": f"{datetime.now().astimezone():%Y-%m-%d}",
        "eaglecpp": metadata.version("eaglecpp"),
        "llama_cpp": machine["llama"]["llama_cpp_python"],
        "cpu": cpu,
        "cores": machine["cpu"]["n_cores"],
        "kernels": machine["kernels"]["table"] if machine["kernels"]["active"] else "llama.cpp's",
        "gpu": ", ".join(gpus),
        "model": f"{target.architecture} {target.config()['model_type']} {target.config()['file_type']}",
        "drafter": drafter["arch"] if drafter is not None else TEXT if engine.has_draft else "",
        "exact": engine.exactness.rows if drafter is not None else "",
    }
    lines = ["[[bench]]", *(f"{name} = {json.dumps(value)}" for name, value in head.items())]
    for one in measured:
        if one.strategy not in ("off", "auto"):
            continue
        row = {
            "temperature": one.temperature,
            "strategy": one.strategy,
            "tokens_per_second": round(one.tokens_per_second, 1),
            "speed": round(one.ratio, 2),
            "acceptance_length": round(one.acceptance_length, 2),
            "acceptance_by_position": [round(rate, 2) for rate in one.acceptance_by_position],
            "steady": one.is_steady,
        }
        lines += ["[[bench.results]]", *(f"{name} = {json.dumps(value)}" for name, value in row.items())]
    return "\n".join(lines) + "\n"
