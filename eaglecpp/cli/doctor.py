# SPDX-License-Identifier: MIT
"""`eaglecpp doctor`: checks this machine and the installation, and says for a model what drafting and the
kernels give: predicted, or measured along with which batches give exactly the text of plain decoding.

Gathers facts into one dict, prints them, and exits with 1 if something is broken. It has to work on a broken
installation, so everything that can fail is imported inside a check.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.command import Command, complete_model, option
from eaglecpp.cli.open_engine import open_engine
from eaglecpp.cli.options import engine_options, given, model_option, only_model
from eaglecpp.cli.terminal import laid_out, show_progress, stdout_is_terminal, write, write_json
from eaglecpp.errors import EagleError
from eaglecpp.human import human_memory
from eaglecpp.options import TEXT, DraftOptions, ModelOptions

if TYPE_CHECKING:
    from eaglecpp.engine.engine import Engine

__all__ = ["doctor", "gather", "machine_lines"]

_UNKNOWN = "What drafting gives is not predicted on this machine: --measure measures it."


@click.command(
    cls=Command,
    examples=[
        ("eaglecpp doctor", "is everything in order?"),
        ("eaglecpp doctor smollm2", "does drafting pay for this model here?"),
    ],
)
@click.argument("model", required=False, shell_complete=complete_model)
@model_option
@option("--draft", metavar="D", help="The drafter, if the model does not bring one.")
@option("--measure", is_flag=True, help="Measure MODEL for some seconds instead of predicting.")
@option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the facts, with the versions of all parts, as one JSON object.",
)
@engine_options(ModelOptions, DraftOptions)
def doctor(
    model: str | None,
    model_named: str | None,
    draft: str | None,
    measure: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Check this machine and the installation. Exit code 1 if something is broken.

    With MODEL, a GGUF file or a stored name, also show how much memory target and drafter need on each
    device, and say what drafting and the kernels give for it here: as measured in earlier runs, else
    predicted from processor and file. --measure decodes for some seconds instead, and finds in which batches
    the model gives the same bits as plain decoding. Use the options that you would run it with.
    """
    if model_named is not None:
        model = only_model(model, model_named)
    if measure and model is None:
        raise click.UsageError("--measure needs a MODEL")
    facts = gather()
    if model is not None and not facts["problems"]:
        facts["model"] = model_facts(model, draft, given(options), measure=measure)
    if as_json:
        write_json(facts)
    else:
        write("".join(f"{_fitted(line)}\n" for line in report(facts)))
    if facts["problems"]:
        raise click.exceptions.Exit(1)


def _fitted(line: str) -> str:
    """A line broken between words, if it goes to a terminal and quotes no command to be copied."""
    if not stdout_is_terminal() or line.startswith("BROKEN"):
        return line
    return laid_out(line, 18 if line[16:18] == "  " else 0)  # below the facts, or the verdict


def model_facts(model: str, draft: str | None, options: dict[str, Any], *, measure: bool) -> dict[str, Any]:
    """Where a model's memory goes, and the verdict on drafting. measure: and which batches are exact. Without
    a drafter there is only plain decoding.
    """
    from eaglecpp.bench import measure_verdict, verdict_of
    from eaglecpp.engine import exactness

    with open_engine(model, draft, None, False, options | {"exact": "off"}) as engine:
        found = None
        if measure:
            found = exactness.measure(engine.native) if engine.has_draft else engine.exactness
            show_progress("measuring speed")
        verdict = measure_verdict(engine) if measure else verdict_of(engine)
        show_progress("")
        unknown = "" if verdict.n_rows or not engine.has_draft else _UNKNOWN
        facts = {
            "verdict": verdict.as_dict() | {"text": " ".join(filter(None, (unknown, str(verdict))))},
            "target": str(engine.target_path),
            "draft": _draft(engine),
            "draft_kind": (engine.draft_info or {}).get("kind"),
            "n_threads": engine.device_info["n_threads"],
            "draft_device": engine.device_info["draft"],
            "draft_why": engine.device_info["draft_why"],
            "memory_plan": engine.memory_plan,
            "chains_only": engine.chains_only,
        }
        if found is None:
            return facts
        return facts | {
            "exact_rows": found.rows,
            "exact_trees": found.trees,
            "exact_reason": found.reason,
            "measured_ms": found.ms,
            "measured_steps": found.decodes,
        }


def _draft(engine: Engine) -> str | None:
    if engine.draft_path is not None:
        return str(engine.draft_path)
    return TEXT if engine.has_draft else None


def gather() -> dict[str, Any]:
    """All facts; `problems` says what is broken and what to do, `notes` what is merely worth knowing."""
    facts: dict[str, Any] = {
        "eaglecpp": metadata.version("eaglecpp"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages(),
        "problems": [],
        "notes": [],
    }
    facts["problems"] += [
        f"{p['name']} {p['found'] or 'is missing'}: eaglecpp needs {p['required']} (pip install '{p['name']}"
        f"{p['required']}')"
        for p in facts["packages"]
        if not p["ok"]
    ]
    try:
        facts |= native_facts()
    except EagleError as error:
        facts["problems"].append(str(error))
        return facts
    facts["notes"] += [f"llama.cpp says: {line}" for line in facts["errors"]]
    amx = facts["cpu"]["amx"]
    if amx["claimed"] and not amx["works"]:
        facts["notes"].append(
            "the CPU claims AMX, but the first AMX instruction fails (common on virtual machines): eaglecpp "
            "loads models without repacked weights; other llama.cpp programs may crash with SIGILL"
        )
    kernels = facts["kernels"]
    if kernels["possible"] and not kernels["active"]:
        facts["notes"].append(
            f"eaglecpp's CPU kernels could run on this processor but do not: {kernels['why_not']}. ggml's "
            "are slower, and with them drafting pays less"
        )
    waiting = os.environ.get("OMP_WAIT_POLICY", "")
    if waiting.lower() == "passive" and any("OPENMP" in feature for feature in facts["features"]):
        facts["notes"].append(
            f"OMP_WAIT_POLICY={waiting} is set: threads sleep between the steps of a token, which can make "
            "decoding on the CPU several times slower; unset it, unless other programs need the cores"
        )
    return facts


def packages() -> list[dict[str, Any]]:
    """The runtime requirements of this distribution: name, required, found (None = missing), ok."""
    from packaging.requirements import Requirement

    rows = []
    for line in metadata.requires("eaglecpp") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            found = None
        ok = found is not None and requirement.specifier.contains(found, prereleases=True)
        required = str(requirement.specifier)
        rows.append({"name": requirement.name, "required": required, "found": found, "ok": ok})
    return rows


def native_facts() -> dict[str, Any]:
    """Versions, devices and CPU, from the loaded extension; `errors`: what llama.cpp said when it could not
    use a device. Raises `VersionError` if the extension does not load.
    """
    from eaglecpp import lowlevel

    system = lowlevel.system_info()
    return {
        "errors": system["errors"],
        "llama": lowlevel.versions(),
        "features": build_features(),
        "devices": system["devices"],
        "cpu": {"n_cores": system["n_cores"], "n_logical": os.cpu_count(), "amx": system["amx"]},
        "kernels": system["kernels"],
        "memory": memory(),
    }


def memory() -> dict[str, int | None]:
    """RAM in bytes, `total` and `available` (None without psutil, which is reported as a problem). Not from
    llama.cpp, which reports all of the CPU's memory as free.
    """
    try:
        import psutil
    except ImportError:
        return {"total": None, "available": None}
    found = psutil.virtual_memory()
    return {"total": found.total, "available": found.available}


def build_features() -> list[str]:
    """The features of llama.cpp's build, in its own words ("CPU : SSE3 = 1", ...)."""
    from llama_cpp import llama_print_system_info

    text: str = llama_print_system_info().decode("utf-8")
    return [part.strip() for part in text.split("|") if part.strip()]


def report(facts: dict[str, Any]) -> list[str]:
    """The facts as lines of text, the verdict first."""
    model = facts.get("model")
    verdict = model["verdict"]["text"] if model else ""
    lines = [f"BROKEN: {text}" for text in facts["problems"]]
    lines = [*(lines or [verdict or f"all good: eaglecpp {facts['eaglecpp']} works here"]), ""]
    lines += machine_lines(facts)
    if model:
        lines += _model_lines(model)
    return lines + [f"note: {text}" for text in facts["notes"]]


def machine_lines(facts: dict[str, Any]) -> list[str]:
    """Processor, memory, GPUs; nothing where the extension does not load."""
    if "llama" not in facts:
        return []
    devices, kernels = facts["devices"], facts["kernels"]
    names = [device["description"] for device in devices if device["kind"] == "cpu"]
    total, available = facts["memory"]["total"], facts["memory"]["available"]
    own = f"eaglecpp's own, {kernels['table']}" if kernels["active"] else f"ggml's ({kernels['why_not']})"
    lines = [
        f"cpu               {', '.join([*names, _counted(facts['cpu']['n_cores'], 'core')])}",
        f"kernels           {own}",
        f"memory            {human_memory(available)} of {human_memory(total)} available",
    ]
    others = [device for device in devices if device["kind"] != "cpu"]
    for device in others:
        room = ""
        if device["memory_total"]:
            room = f", {human_memory(device['memory_free'])} of {human_memory(device['memory_total'])} free"
        lines.append(f"device            {device['name']} ({device['kind']}): {device['description']}{room}")
    return lines if others else [*lines, "gpu               none that this llama.cpp can use"]


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


_KINDS = {"head": "a head for further tokens", "model": "a small model"}


def _model_lines(model: dict[str, Any]) -> list[str]:
    lines = [f"target            {model['target']}, {model['n_threads']} threads"]
    if model["draft"] is None:
        lines += _memory_lines(model["memory_plan"])
        return [*lines, "exact             always, because without a drafter there is only plain decoding"]
    drafter = "none: drafts from the text itself" if model["draft"] == TEXT else model["draft"]
    if model["draft"] == model["target"]:
        drafter = "its own head for further tokens"
    elif model.get("draft_kind") in _KINDS:
        drafter += f" ({_KINDS[model['draft_kind']]})"
    where = f", on {model['draft_device']}" if model["draft_device"] else ""
    lines.append(f"drafter           {drafter}{where}")
    if model["draft_why"]:
        lines.append(f"                  {model['draft_why']}")
    lines += _memory_lines(model["memory_plan"])
    if model["chains_only"]:
        lines.append(f"strategies        chains only: {model['chains_only']}")
    if "exact_rows" not in model:
        return [*lines, "exact             not measured; --measure does"]
    if model["exact_reason"]:
        lines.append(f"exact             plain decoding only: {model['exact_reason']}")
    else:
        kinds = "chains and trees" if model["exact_trees"] and not model["chains_only"] else "chains"
        lines.append(
            f"exact             {kinds} in batches of {model['exact_rows']} rows: the same bits as one by one"
        )
    return lines


def _memory_lines(plan: list[dict[str, Any]]) -> list[str]:
    """One line for each device in use: what is on it, for target or drafter, and how much is free."""
    lines = []
    for place in plan:
        parts = []
        for who, name in (("target", "target"), ("draft", "drafter")):
            sizes = [
                f"{what} {human_memory(place[f'{who}_{what}'])}"
                for what in ("weights", "cache", "compute")
                if place[f"{who}_{what}"]
            ]
            if sizes:
                parts.append(f"{name} {', '.join(sizes)}")
        if parts:
            room = f"; {human_memory(place['free'])} free" if place["total"] else ""
            lines.append(f"memory on {place['device']:<8}{'; '.join(parts)}{room}")
    return lines
