# SPDX-License-Identifier: MIT
"""Formats the result of a conversion and the contents of a file as text."""

from __future__ import annotations

from typing import Any

from .files import counted, human_bytes
from .inspection import SWITCHES
from .pipeline import ConvertReport


def report_text(report: ConvertReport) -> str:
    """Formats the report of a conversion."""
    spec = report.spec
    switches = [name for name in SWITCHES if getattr(spec, name)]
    switches += ["latent attention"] if spec.latent else []
    n_drafts = spec.block.n_drafts if spec.block else spec.parallel.depth if spec.parallel else 0
    switches += [f"{n_drafts} drafts in one pass"] if n_drafts else []
    layers = counted(spec.n_layers, "layer")
    rows = [
        ("recognised", f"{report.family}, {layers}, width {spec.hidden_size}, as {spec.architecture}"),
        ("switches", ", ".join(switches) or "none"),
        ("layers read", f"R_{', R_'.join(map(str, spec.aux_layers))} of {spec.target_block_count} layers, "
        f"width {spec.target_hidden_size} (ids: {spec.layer_ids_rule})"),
        *(("reading", reading) for reading in spec.readings),
        ("vocabulary", f"{spec.draft_vocab_size} of {spec.vocab_size} tokens"),
        *(("note", note) for note in report.notes),
    ]  # fmt: skip
    table = [f"{'tensor':<28} {'type':<8} {'shape':<16} rel. RMS error"]
    for tensor in report.tensors:
        shape = "x".join(map(str, tensor.shape))
        line = f"{tensor.name:<28} {tensor.type:<8} {shape:<16} {tensor.rel_rms_error:.2e}  {tensor.note}"
        table.append(line.rstrip())
    return "\n".join([*_aligned(rows), "", *table, "", f"wrote {report.out} ({human_bytes(report.size)})"])


def facts_text(facts: dict[str, Any]) -> str:
    """Formats the result of `inspect_file`."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        if key == "types":
            for t, n in value.items():
                rows.append(("type", f"{t}: {counted(n['tensors'], 'tensor')}, {human_bytes(n['bytes'])}"))
        elif isinstance(value, dict):
            shown = ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if v is not None)
            rows.append((key, shown))
        elif value is not None:
            rows.append((key, human_bytes(value) if key == "size" else _plain(value)))
    return "\n".join(_aligned(rows))


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows) + 2
    return [f"{name:<{width}}{value}" for name, value in rows]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)
