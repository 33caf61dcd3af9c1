# SPDX-License-Identifier: MIT
"""What each mechanism of the planner is worth: the simulator of its tests, with one of them taken out at a
time. Prints the table of docs/research/planner.md.

    python benchmarks/planner_ablation.py [--seeds 4] [NAME ...]

Each patch replaces pieces of `native/algo` in a copy. A piece that is not there exactly once means that the
code has changed and the patch has to follow.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common import table

ROOT = Path(__file__).parents[1]
HEAD = ["without", "speed, %", "worst window over its limit", "changes of 1 % and more", "limits broken"]

PROGRAMS = ("test_planner_scenarios", "test_planner_shared")

# name: (file, what is there, what takes its place), ...
PATCHES: dict[str, list[tuple[str, str, str]]] = {
    "undrafted levels drift back": [("acceptance.cpp", "revisit = 0.03f", "revisit = 0.0f")],
    "mean chances learned": [
        ("acceptance.cpp", "    const int d = row(depth);\n", "    return;\n    const int d = row(depth);\n")
    ],
    "dense tries at first": [
        ("planner.cpp", "std::clamp(++n_parked_ / 4.0, std::max(try_gap, fair / 3.0), fair)", "fair")
    ],
    "scatter before turning off": [("planner.cpp", "doubt = 2.0", "doubt = 0.0")],
    "hurry": [("planner.cpp", "plan.text.worth.hurry();", "{}")],
    "faster weight while parked": [("planner.cpp", "weight_parked = 0.35", "weight_parked = 0.10")],
    "parking": [
        ("planner.cpp", "    pays_ = gain_ + margin > 0.0;\n", "    pays_ = gain_ + margin > -1e9;\n")
    ],
    "refresh by gain": [("planner.cpp", "(double)refresh_least, (double)most", "100.0, 100.0")],
    "refresh dense at first": [("planner.cpp", "n_plain_ < n_refresh_gaps", "false")],
    "two levels ahead": [("planner.cpp", "n_ahead = 2", "n_ahead = 1")],
    "first uses not charged": [("ledger.h", "first_uses = 4.5", "first_uses = 0.0")],
    "stalls not charged": [("planner.h", "stall = 1.5", "stall = 1e9")],
    "jump of speed": [("costs.cpp", "    if (std::fabs(shift) <= jump()) return;\n", "    return;\n")],
    "slowdown": [("costs.h", "verify_{0.06, true}", "verify_{0.06, false}")],
    "share of change": [
        (
            "costs.cpp",
            "    if (has_slowdown_) share_change(b, is_settled ? prices_[b] / before : 1.0);\n",
            "    (void)before;\n",
        ),
    ],
    "noise in the jump": [("costs.cpp", "std::max(jump_min, jump_noise * noise_)", "jump_min")],
    "median of 15 (5)": [("costs.h", "n_kept = 15", "n_kept = 5")],
    "doubt of prices": [("costs.cpp", "    doubt_prices();\n}\n", "    believed_ = prices_;\n}\n")],
    "sizes up to twice": [("costs.cpp", "std::max(4, 2 * verify_.n_rows_measured())", "64")],
    "host work": [("costs.h", "slowdown() * std::max(0.0, host_draft_ - host_plain_)", "0.0")],
    "slopes learned": [
        ("acceptance.cpp", "            side.slope.learn(error, info, s.x, 0.9995, slope_prior);\n", "")
    ],
    "depth terms (one for all)": [
        ("acceptance.cpp", "i == 0 ? std::clamp(site.depth - 1, 0, n_depths - 1)", "i == 0 ? 0")
    ],
    "rank terms learned": [
        ("acceptance.cpp", "side.offset[s.offset].learn(", "if (i == 0) side.offset[s.offset].learn(")
    ],
    "CUSUM": [("acceptance.cpp", "alarm = 5.0", "alarm = 1e9")],
    "two text terms": [
        (
            "acceptance.cpp",
            "        TextTerm & term = i == 0 ? text.first : text.later;\n        const double",
            "        TextTerm & term = text.first;\n        const double",
        ),
        (
            "acceptance.cpp",
            "TextTerm & term = i == 0 ? text.first : text.later;\n        a[i]",
            "TextTerm & term = text.first;\n        a[i]",
        ),
    ],
    "hand-over": [("acceptance.cpp", "handed_over_max = 0.4", "handed_over_max = 0.0")],
    "pull of text terms": [("acceptance.h", "pull = 0.995", "pull = 1.0")],
    "recent speed as price": [
        ("planner.h", "n_tokens_ > n_rounds_ && n_rounds_ > 0.0 ? n_tokens_ / n_rounds_ : 1.0", "1.0")
    ],
    "those who wait priced": [
        ("market.cpp", "per_ms_ = n_times * n_waiting / round_ms", "per_ms_ = n_times / round_ms")
    ],
    "shapes of devices": [
        ("planner.cpp", "if (change < change_least) shape.n_rows = 0;", "shape.n_rows = 0;")
    ],
    "answers that go on": [("planner.cpp", "n_periods_max = 4", "n_periods_max = 1")],
    "odd samples left out": [
        ("costs.cpp", "if (!is_outlier || e.n_outliers > n_outliers_max) e.add", "e.add")
    ],
    "widths compared": [
        ("planner.cpp", "widths[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}", "widths[] = {512}")
    ],
    "price of first use": [("market.cpp", "once_[n] = n_waiting * first_use", "once_[n] = 0.0 * first_use")],
    "guesses along the neighbours": [
        ("costs.cpp", "if (below >= 0 && above < n_buckets) {", "if (false) {"),
        (
            "costs.cpp",
            "double r = below < 0 ? ratio(above) : ratio(below);",
            "double r = ratio(entries_[0].n > 0 ? 0 : above);",
        ),
    ],
    "labels of later siblings": [
        ("acceptance.cpp", "        if (matched == i) break;", "        if (matched == i || i == 0) break;")
    ],
    "two levels ahead and widths": [
        ("planner.cpp", "n_ahead = 2", "n_ahead = 1"),
        ("planner.cpp", "widths[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}", "widths[] = {512}"),
    ],
}


def build(home: Path) -> Path:
    """The folder of the test programs."""
    out = home / "build"
    if not out.exists():
        options = ["PYTHON=OFF", "TESTS=ON", "ALGO_ONLY=ON"]
        command = ["cmake", "-S", str(home), "-B", str(out), *(f"-DEAGLECPP_{o}" for o in options)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    command = ["cmake", "--build", str(out), "--target", *PROGRAMS]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return out / "tests" / "native" / "algo"


def run(programs: Path, n_seeds: int) -> tuple[dict[str, float], float, list[str]]:
    """Speeds by scenario, the least margin of a window over its limit, and the limits that were broken."""
    speeds, margins, broken = {}, [], []
    for program in PROGRAMS:
        arguments = ["plain", str(n_seeds)] if program == PROGRAMS[0] else []
        done = subprocess.run([programs / program, *arguments], capture_output=True, text=True)
        for line in done.stdout.splitlines():
            if "\t" in line:
                name, speed, margin = line.split("\t")
                speeds[name] = float(speed)
                margins.append(float(margin))
            elif "planner" in line:
                speeds[line.split()[0]] = float(line.split("planner")[1].split("/")[0])
        broken += [line.split(": ", 1)[1] for line in done.stderr.splitlines() if ": S" in line]
    return speeds, min(margins), broken


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to take out; default: each in turn")
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for part in ("CMakeLists.txt", "pyproject.toml", "native", "tests/native"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, home / part)
        before, margin, broken = run(build(home), args.seeds)
        rows = [["nothing", "", f"{margin:+.4f}", "", "; ".join(broken)]]
        for patch in args.names or PATCHES:
            texts: dict[Path, str] = {}
            for file, old, new in PATCHES[patch]:
                path = home / "native" / "algo" / file
                text = path.read_text()
                texts.setdefault(path, text)
                if text.count(old) != 1:
                    sys.exit(f"{patch}: '{old}' is {text.count(old)} times in {file}, expected once")
                path.write_text(text.replace(old, new))
            after, margin, broken = run(build(home), args.seeds)
            for path, text in texts.items():
                path.write_text(text)
            change = {c: 100.0 * math.log(after[c] / before[c]) for c in before}
            large = sorted((v, c) for c, v in change.items() if abs(v) >= 1.0)
            shown = ", ".join(f"{c} {v:+.0f}" for v, c in large)
            mean = sum(change.values()) / len(change)
            rows.append([patch, f"{mean:+.2f}", f"{margin:+.4f}", shown, "; ".join(broken)])
            print(rows[-1], file=sys.stderr)
        print(table(HEAD, rows))


if __name__ == "__main__":
    main()
