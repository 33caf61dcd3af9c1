# SPDX-License-Identifier: MIT
"""Helpers of the benchmark scripts: prompts, medians, tables, and the facts of every result.

A result is a dict with the model, quantisation, machine and commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from questions import in_turns, read_suite

import eaglecpp
from eaglecpp.lowlevel import system_info, versions


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids. `expected` has the other fields of the prompt's entry in the file."""

    ids: list[int]
    expected: dict[str, Any]


def read_prompts(path: Path, engine: eaglecpp.Engine, limit: int | None = None) -> list[Prompt]:
    """Returns the prompts of a file: JSON with a list `prompts` of `prompt_ids` or `prompt`, the first turns
    of a JSONL of questions in the target's chat template, or one text.

    Raises `SystemExit` if a JSON file has no prompts.
    """
    if path.suffix == ".jsonl":
        asked = list(in_turns(read_suite(str(path)).questions))[:limit]
        return [Prompt(engine.chat_prompt([{"role": "user", "content": one.turns[0]}]), {}) for one in asked]
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return [Prompt(engine.tokenize(text), {})]
    try:
        entries = json.loads(text)["prompts"]
        prompts = [
            Prompt(e["prompt_ids"] if "prompt_ids" in e else engine.tokenize(e["prompt"]), e) for e in entries
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"{path}: expected a JSON object whose 'prompts' each have 'prompt_ids' or 'prompt': {error!r}"
        ) from None
    return prompts[:limit]


def arguments(text: str | None) -> argparse.ArgumentParser:
    """Returns a parser of arguments. text: a script's docstring, which becomes the help text."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def option(text: str) -> tuple[str, str]:
    """Parses NAME=VALUE for argparse."""
    name, mark, value = text.partition("=")
    if not mark:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, value


def median(values: Iterable[float]) -> float:
    """Returns the median; 0 if there are no values."""
    numbers = list(values)
    return statistics.median(numbers) if numbers else 0.0


def note(text: str) -> None:
    """Prints progress to stderr: stdout carries only results."""
    print(text, file=sys.stderr, flush=True)


def warn_if_busy() -> None:
    """Warns if the machine is busy. Then threads of a program wait for each other, and measurements are
    meaningless.
    """
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        note(f"load average {os.getloadavg()[0]:.1f}: other programs disturb the measurements")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table with aligned columns. Floats have two decimals."""
    cells = [[f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(head), *cells]) for i in range(len(head))]
    lines = [[h.ljust(w) for h, w in zip(head, widths, strict=True)], ["-" * w for w in widths]]
    lines += [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def model_facts(path: Path) -> dict[str, Any]:
    """Returns name, architecture, quantisation, weights and size of a GGUF."""
    reader = gguf.GGUFReader(path)
    architecture = reader.get_field("general.architecture")
    file_type = reader.get_field("general.file_type")
    return {
        "file": path.name,
        "architecture": architecture.contents() if architecture else "",
        "type": gguf.LlamaFileType(file_type.contents()).name.removeprefix("MOSTLY_") if file_type else "",
        "n_params": sum(int(t.n_elements) for t in reader.tensors if t.name != "d2t"),
        "n_bytes": path.stat().st_size,
    }


def cpu_name() -> str:
    """Returns the CPU's marketing name, or another name if the system does not report the marketing name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def commit() -> str:
    """Returns the commit of this checkout, with `-dirty` if tracked files were changed."""
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.strip() or "unknown"


def by_name(files: Sequence[Path]) -> dict[str, Path]:
    """Returns the files by stem. If two files have the same stem, their keys also contain the names of their
    folders.
    """
    stems = [file.stem for file in files]
    return {f.stem if stems.count(f.stem) == 1 else f"{f.parent.name}/{f.stem}": f for f in files}


def facts(models: dict[str, Path], **settings: Any) -> dict[str, Any]:
    """Returns the facts that every result contains."""
    info = system_info()
    return {
        "models": {role: model_facts(path) for role, path in models.items()},
        "machine": {
            "cpu": cpu_name(),
            "n_cores": info["n_cores"],
            "n_logical": os.cpu_count(),
            "amx": info["amx"],
            "devices": info["devices"],
            "system": platform.platform(),
            "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        },
        "commit": commit(),
        "versions": {"eaglecpp": eaglecpp.__version__, "python": platform.python_version(), **versions()},
        "command": " ".join(
            [Path(sys.argv[0]).name, *(Path(a).name if os.sep in a else a for a in sys.argv[1:])]
        ),
        "settings": settings,
    }


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Writes the result of a benchmark to a file as JSON. If the path is None, writes nothing."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
        note(f"wrote {path}")
