# SPDX-License-Identifier: MIT
"""The tables of `kernels.py`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import facts, median, table, write_json
from kernel_goals import Measured, Verdict, bench_over_turns, goals_of, over_own, over_their_one, verdicts

OTHERS_MAX = 0.03  # share of the processor time that other programs may take without a note


def cpu_flags() -> list[str]:
    """What of the CPU's instruction sets kernels may use, as Linux names them."""
    known = ("avx2", "fma", "f16c", "avx_vnni", "avx512", "amx", "asimd", "i8mm", "sve", "bf16")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    flags = next(
        (line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), []
    )
    return [flag for flag in flags if flag.startswith(known)]


def print_rows(targets: list[Measured]) -> None:
    """Milliseconds of both, and the two ratios that have goals."""
    lines: list[list[Any]] = []
    numbers: list[str] = []
    for one in targets:
        if "rows" not in one.parts:
            continue
        numbers = list(one.parts["rows"]["ours"])
        rows = one.parts["rows"]
        for who in ("theirs", "ours"):
            lines.append([one.name, {"theirs": "llama.cpp, ms", "ours": "ours, ms"}[who]])
            lines[-1] += [median(rows[who][n]) for n in rows[who]]
        lines.append(["", "over llama.cpp's T(1)", *(over_their_one(rows, n) for n in rows["ours"])])
        lines.append(["", "over llama.cpp's T(n)", *(over_own(rows, n) for n in rows["ours"])])
        if "ik" in rows:
            lines.append(["", "ik_llama.cpp, ms", *(median(ms) for ms in rows["ik"].values())])
            lines.append(["", "over ik_llama.cpp's T(n)", *(over_own(rows, n, "ik") for n in rows["ours"])])
        if "bench" in rows:
            checks = [bench_over_turns(rows["theirs"][n], ms) for n, ms in rows["bench"].items()]
            gaps = [""] * (len(numbers) - len(checks))
            lines.append(["", "llama-bench over llama.cpp, ms", *checks, *gaps])
    print(table(["target", "", *(f"T({n})" for n in numbers)], lines))


def print_loads(targets: list[Measured]) -> None:
    lines = []
    for one in targets:
        load = one.parts.get("load")
        for who in ("theirs", "ours") if load else ():
            found = load["memory"][who]
            sizes = [f"{found[k] / 2**20:.0f}" for k in ("rss", "pss", "pss_anonymous", "pss_file")]
            name = "llama.cpp" if who == "theirs" else "eaglecpp"
            ready = f"{median(load['ready'][who]):.0f}" if "ready" in load else ""
            lines.append([one.name, name, f"{median(load[who]):.0f}", ready, *sizes])
    head = ["load, ms", "load and 16 tokens, ms", "RSS, MiB", "PSS", "anonymous", "file-backed"]
    print(table(["target", "", *head], lines))


def print_verdicts(found: list[Verdict], has_avx512: bool) -> None:
    """One line for each goal, then every place that missed it."""
    lines = []
    for goal in goals_of(has_avx512).values():
        members = [verdict for verdict in found if verdict.goal == goal]
        if not members:
            lines.append([goal.name, str(goal), "", "", "", "not measured"])
            continue
        worst = (max if goal.at_most else min)(members, key=lambda verdict: verdict.value)
        n_reached = sum(verdict.reached for verdict in members)
        says = "reached" if n_reached == len(members) else "NOT REACHED"
        lines.append(
            [goal.name, str(goal), f"{worst.value:.3f}", worst.where, f"{n_reached} of {len(members)}", says]
        )
    print(table(["goal", "wanted", "worst", "where", "reached at", ""], lines))
    missed = [verdict for verdict in found if not verdict.reached]
    if missed:
        print("\nMissed:\n")
        lines = [[one.goal.name, str(one.goal), f"{one.value:.3f}", one.where] for one in missed]
        print(table(["goal", "wanted", "value", "where"], lines))


def report(args: argparse.Namespace, targets: list[Measured], document: dict[str, Any]) -> None:
    flags = cpu_flags()
    found = verdicts(targets, args.isa_avx512)
    print_rows(targets)
    print()
    print_loads(targets)
    print()
    print_verdicts(found, args.isa_avx512)
    parts = [part["about"] for part in document["parts"].values()]
    for what in ("commit", "date"):
        seen = sorted({str(part[what]) for part in parts})
        print(f"\n{what}: {seen[0]}{f' to {seen[-1]}' if len(seen) > 1 else ''}" if seen else "")
    disturbed = [
        (key, part["about"]["others"])
        for key, part in document["parts"].items()
        if part["about"]["others"] > OTHERS_MAX
    ]
    if disturbed:
        listed = ", ".join(f"{key} ({100 * share:.0f} %)" for key, share in disturbed)
        print(f"\nmeasured while other programs took processor time: {listed}")
    machine = facts({})["machine"]
    print(f"{machine['cpu']}, {machine['n_cores']} cores, {args.threads} threads: {' '.join(flags)}")
    rows = [
        {
            "goal": one.goal.name,
            "wanted": str(one.goal),
            "where": one.where,
            "value": one.value,
            "reached": one.reached,
        }
        for one in found
    ]
    write_json(args.json, document | {"verdicts": rows, "flags": flags} | facts({}))
