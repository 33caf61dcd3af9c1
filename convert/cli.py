# SPDX-License-Identifier: MIT
"""The click command `convert`, which `eaglecpp`'s group attaches, and the text of `inspect`.

Results go to stdout, the progress bar and notes to stderr. The caller handles EagleError and prints it in
one line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .errors import InvalidValueError
from .files import counted, human_bytes
from .inspection import SWITCHES, inspect_file
from .pipeline import ConvertReport, Progress, convert_checkpoint
from .quantize import TYPES
from .readings import Options


class IdList(click.ParamType[tuple[int, ...]]):
    """`2,16,29`."""

    name = "ids"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"expected numbers separated by commas, such as 2,16,29, found {value!r}", param, ctx)


@click.command("convert")
@click.argument("src")
@click.option(
    "--target",
    required=True,
    metavar="T",
    help="The target: a GGUF or a stored name.",
)
@click.option(
    "-o",
    "--out",
    "--outfile",
    type=click.Path(path_type=Path),
    help="Output file.  [default: <SRC's name>-<TYPE>.gguf]",
)
@click.option(
    "--type",
    "--outtype",
    "type_",
    type=click.Choice(list(TYPES), case_sensitive=False),
    default="Q8_0",
    show_default=True,
    metavar="TYPE",
    help=f"Type of the matrices: {', '.join(TYPES)}.",
)
@click.option(
    "--aux-layers",
    type=IdList(),
    metavar="IDS",
    help="Target layers that the features come from, such as 2,16,29.",
)
@click.option(
    "--reading",
    "readings",
    multiple=True,
    metavar="NAME=VALUE",
    help="How to read what a checkpoint leaves open: layer_ids=boundary or post, feed=pre or post, "
    "rope_theta=NUMBER, rope_scaling=config or none, feature_norm=once or twice, head_norm=yes or no, "
    "slots=in-place or anchor-first. Several may be given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def convert(src: str, target: str, **options: Any) -> None:
    """Convert an EAGLE drafter checkpoint to GGUF.

    SRC is a checkpoint directory, a weight file, or a drafter's GGUF.
    """
    run(src, target, **options)


def run(
    src: str | Path,
    target: str | Path,
    *,
    out: Path | None,
    type_: str,
    readings: Sequence[str],
    as_json: bool,
    hub_id: str | None = None,
    by: Callable[..., ConvertReport] = convert_checkpoint,
    **reading: Any,
) -> ConvertReport:
    """Converts with a bar, prints the report and returns it. hub_id, reading: as for `convert_checkpoint`, in
    place of which `by` is called.
    """
    named = {name: value for name, _, value in (text.partition("=") for text in readings)}
    try:
        Options.of(**reading, readings=named)
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from None
    with _progress_bar() as progress:
        report = by(src, target, out, type_, readings=named, progress=progress, hub_id=hub_id, **reading)
    _print(json.dumps(_report_facts(report), indent=2) if as_json else _report_text(report))
    return report


def show_file(file: Path, as_json: bool) -> None:
    """Prints what is in a GGUF file. Raises GgufError."""
    facts = inspect_file(file)
    _print(json.dumps(facts, indent=2) if as_json else _facts_text(facts))


def _print(text: str) -> None:
    """A result."""
    click.echo(printable(text) if sys.stdout.isatty() else text)


def printable(text: str) -> str:
    """Without control characters, which a terminal would obey: these texts come from other people's files."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


@contextmanager
def _progress_bar() -> Iterator[Any]:
    """A bar on stderr while tensors are written; nothing when stderr is not a terminal."""
    bar: Any = None

    def update(progress: Progress) -> None:
        nonlocal bar
        if not sys.stderr.isatty() or not progress.total:
            return
        if bar is None:
            bar = click.progressbar(
                length=progress.total, file=sys.stderr, item_show_func=lambda item: item or ""
            )
            bar.__enter__()
        bar.update(progress.done - bar.pos, progress.what)

    try:
        yield update
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)


def _report_facts(report: ConvertReport) -> dict[str, Any]:
    return {**asdict(report), "out": str(report.out), "architecture": report.spec.architecture}


def _report_text(report: ConvertReport) -> str:
    spec = report.spec
    switches = [name for name in SWITCHES if getattr(spec, name)]
    switches += ["latent attention"] if spec.latent else []
    n_drafts = spec.block.n_drafts if spec.block else spec.parallel.depth if spec.parallel else 0
    switches += [f"{n_drafts} drafts in one pass"] if n_drafts else []
    layers = counted(spec.n_layers, "layer")
    rows = [
        ("recognised", f"{report.family} drafter, {layers}, {spec.hidden_size} wide, as {spec.architecture}"),
        ("switches", ", ".join(switches) or "none"),
        ("features", f"R_{', R_'.join(map(str, spec.aux_layers))} of {spec.target_block_count} layers, "
                     f"{spec.target_hidden_size} wide (ids: {spec.layer_ids_rule})"),
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


def _facts_text(facts: dict[str, Any]) -> str:
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
