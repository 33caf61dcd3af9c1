# SPDX-License-Identifier: MIT
"""Measures the effect of each rule of the planner: runs the simulator of the planner's tests with one rule
switched off at a time.

    python tests/planner_ablation.py [--seeds 16] [--rules REGEX] [--source FOLDER]

The rules are listed in tests/planner_rules.toml. For each rule, the program prints the change of the mean
speed over the scenes of test_planner_scenarios, over the published curves of benchmarks/planner_curves.cpp,
and over both. It also prints the largest loss of a scene, and the number of runs in which the speed of a
window of 512 tokens fell below its bound. --source adds a row for the unmodified planner of another checkout.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("CMakeLists.txt", "native", "tests/native", "benchmarks/planner_curves.cpp")
PROGRAMS = ("test_planner_scenarios", "planner_curves")
SWITCH = """
#include <cstdlib>
inline bool rule_off(int i) {
    static const char * off = std::getenv("RULE_OFF");
    static const int number = off ? std::atoi(off) : -1;
    return i == number;
}
"""
FORMS = {
    "expression": "(rule_off(RULE) ? ({to}) : ({from}))",
    "statement": "if (rule_off(RULE)) {{ {to} }} else {{ {from} }}",
    "text": "{to}",
}
Runs = dict[str, list[tuple[float, bool]]]
"""By scene and seed: the logarithm of the speed, and whether a window fell below its bound."""


def build(source: Path, folder: Path, rules: list[dict[str, str]]) -> list[Path]:
    """Copies a checkout, adds a switch for each planner rule to the copy, and builds both test programs."""
    for part in PARTS:
        to = folder / part
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source / part, to) if (source / part).is_dir() else shutil.copy(source / part, to)
    (folder / "switch.h").write_text(SWITCH)
    for i, rule in enumerate(rules):
        path = folder / "native" / "algo" / rule["file"]
        text = path.read_text()
        if text.count(rule["from"]) != 1:
            sys.exit(f"{rule['name']}: {rule['from']!r} must occur exactly once in {rule['file']}")
        switched = FORMS[rule.get("kind", "expression")].format(**rule).replace("RULE", str(i))
        path.write_text(text.replace(rule["from"], switched.replace(f"rule_off({i})", f"::rule_off({i})")))
    options = ("PYTHON=OFF", "TESTS=ON", "ALGO_ONLY=ON")
    flags = f"-DCMAKE_CXX_FLAGS=-w -include {folder / 'switch.h'}"
    command = ["cmake", "-S", folder, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release", flags]
    subprocess.run([*command, *(f"-DEAGLECPP_{o}" for o in options)], check=True, stdout=sys.stderr)
    command = ["cmake", "--build", folder / "build", "-j", "2", "--target", *PROGRAMS]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return [next(p for p in (folder / "build").rglob(name) if p.is_file()) for name in PROGRAMS]


def measure(programs: list[Path], n_seeds: int, rule: int = -1) -> Runs:
    commands = ([programs[0], "runs", str(n_seeds)], [programs[1], str(n_seeds)])
    environment = os.environ | {"RULE_OFF": str(rule)}
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True, env=environment) for c in commands]
    found: Runs = defaultdict(list)
    for i, process in enumerate(running):
        # The second program prints a header, which is left out.
        for line in process.communicate()[0].splitlines()[i:]:
            fields = line.split("\t")
            name, values = (", ".join(fields[:3]), fields[3:6]) if i else (fields[0], fields[1:])
            speed, window, bound = map(float, values)
            found[name].append((math.log(speed), window < bound))
    return found


def compare(name: str, base: Runs, runs: Runs) -> str:
    lost = {
        scene: fmean(new[0] - old[0] for new, old in zip(runs[scene], values, strict=True))
        for scene, values in base.items()
    }
    curves = [value for scene, value in lost.items() if "," in scene]
    scenes = [value for scene, value in lost.items() if "," not in scene]
    numbers = "".join(f"{100 * math.expm1(fmean(v)):+7.2f}" for v in (scenes, curves, scenes + curves))
    worst = min(lost, key=lost.__getitem__)
    n_below = sum(is_below for values in runs.values() for _, is_below in values)
    return f"{name:48}{numbers}{100 * math.expm1(lost[worst]):+8.1f} {worst[:40]:40}{n_below:5}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--rules", default="")
    parser.add_argument("--source", type=Path)
    args = parser.parse_args()
    rules = tomllib.loads((ROOT / "tests" / "planner_rules.toml").read_text())["rule"]
    with tempfile.TemporaryDirectory() as name:
        programs = build(ROOT, Path(name) / "ours", rules)
        base = measure(programs, args.seeds)
        print(f"{'%':48}{'scenes':>7}{'curves':>7}{'both':>7}{'worst':>8} {'':40}below")
        print(compare("all rules", base, base), flush=True)
        if args.source:
            others = measure(build(args.source, Path(name) / "other", []), args.seeds)
            print(compare(args.source.name, base, others), flush=True)
        for i, rule in enumerate(rules):
            if re.search(args.rules, rule["name"]):
                print(compare(rule["name"], base, measure(programs, args.seeds, i)), flush=True)


if __name__ == "__main__":
    main()
