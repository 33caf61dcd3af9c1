# SPDX-License-Identifier: MIT
"""`eaglecpp convert`: converts a drafter checkpoint to GGUF.

The checkpoint and the target may be any reference, and files on the Hub are downloaded. If a checkpoint has
several variants, the command measures the variants, and converts the best of them.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from eaglecpp.cli.command import command, json_option, option
from eaglecpp.cli.options import LAYERS, Parsed
from eaglecpp.cli.terminal import labelled, note, table, write, write_json
from eaglecpp.convert import TYPES, ConvertReport, Progress, checked_readings, inspection
from eaglecpp.human import counted, human_bytes
from eaglecpp.store.errors import Status
from eaglecpp.store.progress import Bars


def _reading(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, checked_readings({name: value})[name]


@command(
    ("eaglecpp convert ./eagle3-head --target smollm2", "a checkpoint for a stored model"),
    ("eaglecpp convert hf.co/user/eagle3 --target model.gguf", "a Hub checkpoint for a file"),
)
@click.argument("src")
@option("--target", required=True, metavar="T", help="The target: a GGUF or a stored name.")
@option("-o", "--out", "--outfile", type=click.Path(path_type=Path),
        help="Output file.  [default: <SRC's name>-<TYPE>.gguf]")  # fmt: skip
@option("--type", "--outtype", "kind", type=click.Choice(list(TYPES), case_sensitive=False), default="Q8_0",
        show_default=True, metavar="TYPE", help=f"Type of the matrices: {', '.join(TYPES)}.")  # fmt: skip
@option("--aux-layers", type=LAYERS, metavar="IDS",
        help="Target layers whose hidden states the drafter reads, such as 2,16,29.")  # fmt: skip
@option("--reading", "readings", multiple=True, type=Parsed("reading", _reading), metavar="NAME=VALUE",
        help="Set what the checkpoint leaves open: layer_ids=boundary or post, feed=pre or post, "
        "rope_theta=NUMBER, rope_scaling=config or none, feature_norm=once or twice, head_norm=yes or no, "
        "slots=in-place or anchor-first, block_size=NUMBER, partial_rotary=ignored or applied, "
        "head=target or embeddings. Repeatable.")  # fmt: skip
@json_option("the report as JSON")
def convert(
    src: str,
    target: str,
    out: Path | None,
    kind: str,
    aux_layers: tuple[int, ...] | None,
    readings: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Convert a checkpoint of an EAGLE or block drafter to GGUF. SRC is a folder, a weight file, a drafter's
    GGUF, or hf.co/owner/name. If a checkpoint has several variants, the target writes a few texts, and the
    variant that drafts them best is used.
    """
    from eaglecpp.readings import convert_checkpoint

    with Bars() as bars:

        def show(progress: Progress) -> None:
            bars(Status("converting", "", progress.total, progress.done, src))

        report = convert_checkpoint(
            src, target, out, type=kind, progress=show, report=bars, say=note,
            aux_layers=aux_layers, readings=dict(readings),
        )  # fmt: skip
    if as_json:
        facts = {"out": str(report.out), "architecture": report.spec.architecture}
        write_json(asdict(report) | facts)
    else:
        write(_report_text(report))
    note(f"to use it: `eaglecpp run {shlex.quote(target)} --draft {shlex.quote(str(report.out))}`")


def _report_text(report: ConvertReport) -> str:
    """Formats the report of a conversion."""
    spec = report.spec
    switches = [name for name in inspection.SWITCHES if getattr(spec, name)]
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
    tensors = [
        (one.name, one.type, "x".join(map(str, one.shape)), f"{one.rel_rms_error:.2e}", one.note)
        for one in report.tensors
    ]
    listed = table(("tensor", "type", "shape", "rel. RMS error", ""), tensors)
    return f"{labelled(rows)}\n{listed}\nwrote {report.out} ({human_bytes(report.size)})\n"
