# SPDX-License-Identifier: MIT
"""`eaglecpp doctor`: checks this machine and the installation, and reports the speed-up that drafting and the
kernels give a model. The speed-up is predicted or, with --measure, measured. A measurement also finds the
batch sizes that give exactly the text of target-only decoding.

The command gathers facts into one dict, prints them, and exits with 1 if something is broken. The command
must work on a broken installation, so imports that can fail are inside the checks.
"""

from __future__ import annotations

import os
import platform
from functools import partial
from importlib import metadata
from typing import Any

import click

from eaglecpp.cli.command import command, json_option, option
from eaglecpp.cli.open_engine import open_engine
from eaglecpp.cli.options import AUTOMATIC_CONTEXT, engine_options, given, model_argument
from eaglecpp.cli.terminal import fitted, labelled, show_progress, write, write_json
from eaglecpp.errors import EagleError
from eaglecpp.human import counted, human_bytes
from eaglecpp.opening.fetch import fetch
from eaglecpp.options import TEXT, DraftOptions, ModelOptions
from eaglecpp.references import part_paths
from eaglecpp.store.progress import Bars

_UNKNOWN = "The speed-up by drafting is not measured on this machine; --measure measures it."


@command(
    ("eaglecpp doctor", "is everything in order?"),
    ("eaglecpp doctor smollm2", "does drafting pay for this model here?"),
    usual="draft measure as_json n_ctx n_threads n_gpu_layers n_cpu_moe type_k type_v mmproj",
)
@model_argument(is_needed=False)
@option("--draft", metavar="D", help="The drafter, if the model has none of its own.")
@option("--measure", is_flag=True, help="Measure MODEL for some seconds instead of predicting.")
@json_option("the facts, with the versions of all parts, as one JSON object")
@engine_options(ModelOptions, DraftOptions, helps=AUTOMATIC_CONTEXT)
def doctor(model: str | None, draft: str | None, measure: bool, as_json: bool, **options: Any) -> None:
    """Check this machine and the installation. Exit code 1 if something is broken.

    With MODEL, a GGUF file or a stored name, also show how much memory target and drafter need on each
    device, and the speed-up by drafting and the kernels: as measured in earlier runs, else predicted from a
    few steps. --measure decodes for some seconds instead, and finds the batches in which the model gives the
    same bits as target-only decoding. Pass the options that you use to run the model.
    """
    if measure and model is None:
        raise click.UsageError("--measure needs a MODEL")
    facts = gather()
    if model is not None and not facts["problems"]:
        facts["model"] = model_facts(model, draft, given(options), measure=measure)
    if as_json:
        write_json(facts)
    else:
        write(report(facts))
    if facts["problems"]:
        raise click.exceptions.Exit(1)


def model_facts(model: str, draft: str | None, options: dict[str, Any], *, measure: bool) -> dict[str, Any]:
    """Returns a model's memory use and the verdict on drafting. measure: measure the speeds, and find the
    exact batch sizes. Without a drafter, only target-only decoding is measured.
    """
    from eaglecpp.bench.verdict import measure_verdict, verdict_of
    from eaglecpp.engine import exactness

    options = options | {"exact": "off"}
    # Opening an engine looks up drafters, and the report suggests downloading these drafters.
    with Bars() as bars:
        engine = open_engine(
            model, draft, None, options, choose_context=True, find=partial(fetch, report=bars)
        )
    with engine:
        exact = None
        if measure:
            engine.native.set_exact_rows([], is_complete=False)  # forgets earlier results
            exact = exactness.measure(engine.native) if engine.has_draft else engine.exactness
            show_progress("measuring speed")
        verdict = measure_verdict(engine) if measure else verdict_of(engine)
        show_progress("")
        unknown = "" if verdict.n_rows or not engine.has_draft else _UNKNOWN
        facts = {
            "verdict": verdict.as_dict() | {"text": " ".join(filter(None, (unknown, str(verdict))))},
            "target": str(engine.target_path),
            "target_size": sum(path.stat().st_size for path in part_paths(engine.target_path)),
            "draft": str(engine.draft_path or TEXT) if engine.has_draft else None,
            "offer": engine.plan.files.offer,
            "draft_kind": (engine.draft_info or {}).get("kind"),
            "n_threads": engine.device_info["n_threads"],
            "n_ctx": engine.n_ctx,
            "n_ctx_why": engine.plan.context.origin,
            "draft_device": engine.device_info["draft"],
            "draft_why": engine.device_info["draft_why"],
            "memory_plan": engine.memory_plan,
            "chains_only": engine.chains_only,
        }
        if exact is not None:
            facts |= {f"exact_{name}": getattr(exact, name) for name in ("rows", "trees", "reason")}
            facts |= {"measured_ms": exact.ms, "measured_steps": exact.decodes}
        return facts


def gather() -> dict[str, Any]:
    """Gathers all facts. `problems` in the result: broken parts with their fixes. `notes`: further
    remarks.
    """
    facts: dict[str, Any] = {
        "eaglecpp": metadata.version("eaglecpp"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "problems": [],
        "notes": [],
    }
    try:
        facts |= native_facts()
    except EagleError as error:
        facts["problems"].append(str(error))
        return facts
    facts["notes"] += [f"llama.cpp reports: {line}" for line in facts["errors"]]
    amx = facts["cpu"]["amx"]
    if amx["claimed"] and not amx["works"]:
        facts["notes"].append(
            "the CPU reports AMX, but its first AMX instruction fails, as on many virtual machines. "
            "eaglecpp therefore does not repack weights; other llama.cpp programs may crash with SIGILL"
        )
    kernels = facts["kernels"]
    if kernels["possible"] and not kernels["active"]:
        facts["notes"].append(
            f"this processor supports eaglecpp's CPU kernels, but they are not used: {kernels['why_not']}. "
            "ggml's kernels are slower, so drafting pays less"
        )
    return facts


def native_facts() -> dict[str, Any]:
    """Returns versions, devices and CPU from the extension. `errors` in the result: messages of llama.cpp
    about devices that llama.cpp cannot use. Raises `VersionError` if the extension does not load.
    """
    from eaglecpp import lowlevel  # eaglecpp.lowlevel is imported first, because llama_cpp may be broken

    system = lowlevel.system_info()
    import psutil
    from llama_cpp import llama_print_system_info

    from eaglecpp.opening.context import free_memory

    # In a container, llama.cpp reports the CPU's whole memory as free, and psutil reports the host's memory.
    total = psutil.virtual_memory().total
    features = llama_print_system_info().decode("utf-8").split("|")
    return {
        "errors": system["errors"],
        "llama": lowlevel.versions(),
        "features": [part for part in map(str.strip, features) if part],
        "devices": system["devices"],
        "cpu": {"n_cores": system["n_cores"], "n_logical": os.cpu_count(), "amx": system["amx"]},
        "kernels": system["kernels"],
        "memory": {"total": total, "available": free_memory()},
    }


def report(facts: dict[str, Any]) -> str:
    """Formats the facts about the machine. The verdict comes first."""
    model = facts.get("model")
    verdict = model["verdict"]["text"] if model else ""
    head = fitted(verdict or f"all good: eaglecpp {facts['eaglecpp']} works here") + "\n"
    if facts["problems"]:  # problems are not wrapped, because they contain commands to copy
        head = "".join(f"BROKEN: {text}\n" for text in facts["problems"])
    rows = machine_rows(facts) + (_model_rows(model) if model else [])
    notes = "".join(f"{fitted(f'note: {text}')}\n" for text in facts["notes"])
    return f"{head}\n{labelled(rows)}{notes}"


def machine_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns rows of text for the processor, the memory and the GPUs. The result is empty if the extension
    does not load.
    """
    if "llama" not in facts:
        return []
    devices, kernels, memory = facts["devices"], facts["kernels"], facts["memory"]
    names = [device["description"] for device in devices if device["kind"] == "cpu"]
    own = f"eaglecpp's own, {kernels['table']}" if kernels["active"] else f"ggml's ({kernels['why_not']})"
    others = []
    for device in devices:
        free, total = device["memory_free"], device["memory_total"]
        room = f", {human_bytes(free)} of {human_bytes(total)} free" if total else ""
        if device["kind"] != "cpu":
            others.append(("device", f"{device['name']} ({device['kind']}): {device['description']}{room}"))
    return [
        ("cpu", ", ".join([*names, counted(facts["cpu"]["n_cores"], "core")])),
        ("kernels", own),
        ("memory", f"{human_bytes(memory['available'])} of {human_bytes(memory['total'])} available"),
        *(others or [("gpu", "none that this llama.cpp can use")]),
    ]


_KINDS = {"head": "a multi-token prediction head", "model": "a small model", "eagle": "EAGLE"}


def _model_rows(model: dict[str, Any]) -> list[tuple[str, str]]:
    target, draft, memory = model["target"], model["draft"], _memory_rows(model["memory_plan"])
    size, threads = human_bytes(model["target_size"]), counted(model["n_threads"], "thread")
    rows = [("target", f"{target} ({size}), {threads}")]
    memory = [("context", f"{model['n_ctx']} tokens, {model['n_ctx_why']}"), *memory]
    if draft is None:
        exact = "always: without a drafter, all decoding is target-only"
        offer = "; ".join(filter(None, ("none", model["offer"])))
        return [*rows, ("drafter", offer), *memory, ("exact", exact)]
    own = {TEXT: "none: drafts from the text itself", target: "its own multi-token prediction head"}
    where = f", on {model['draft_device']}" if model["draft_device"] else ""
    kind = _KINDS.get(model["draft_kind"], model["draft_kind"])
    rows.append(("drafter", (own.get(draft) or f"{draft} ({kind})") + where))
    rows += [("", model["draft_why"])] * bool(model["draft_why"]) + memory
    if model["chains_only"]:
        rows.append(("strategies", f"chains only: {model['chains_only']}"))
    if "exact_rows" not in model:
        exact = "not measured; --measure measures it"
    elif model["exact_reason"]:
        exact = f"always target-only decoding: {model['exact_reason']}"
    else:
        kinds = "chains and trees" if model["exact_trees"] and not model["chains_only"] else "chains"
        exact = f"{kinds} in batches of {model['exact_rows']} tokens give the same bits as single tokens"
    return [*rows, ("exact", exact)]


def _memory_rows(plan: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Returns a row of text for each device in use: the sizes of target and drafter on the device, and the
    device's free memory.
    """
    rows = []
    for device in plan:
        parts = []
        for who, name in (("target", "target"), ("draft", "drafter")):
            sizes = {what: device[f"{who}_{what}"] for what in ("weights", "cache", "compute")}
            if shown := [f"{what} {human_bytes(size)}" for what, size in sizes.items() if size]:
                parts.append(f"{name} {', '.join(shown)}")
        if parts:
            parts += [f"{human_bytes(device['free'])} free"] if device["total"] else []
            rows.append((f"memory on {device['device']}", "; ".join(parts)))
    return rows
