# SPDX-License-Identifier: MIT
"""Measures an installation from the sources: the processor time of llama-cpp-python and of eaglecpp,
separately.

    python benchmarks/install.py [--only eaglecpp,llama-cpp-python] [--wheels DIR] [--json FILE]

pip builds each wheel anew, without pip's cache and without ccache, and leaves the wheel in DIR. eaglecpp is
built against the llama-cpp-python of this environment, which also needs scikit-build-core, nanobind and
ninja. Processor time hardly depends on other programs. The time on several cores is computed from the
processor time, because each build keeps all cores busy until its last file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PIN = re.search(r'"(llama-cpp-python==[^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
assert PIN is not None
# The packages are in the order in which pip builds them.
PACKAGES = {
    "llama-cpp-python": ("--no-binary", "llama-cpp-python", PIN.group(1)),
    "eaglecpp": ("--no-build-isolation", str(ROOT)),
}
CORES = (2, 4, 8, 16)


def build(name: str, wheels: Path, scratch: str) -> dict[str, Any]:
    """Builds the wheel of the package `name` into the folder `wheels`. Returns seconds of processor time and
    of wall-clock time.
    """
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-cache-dir", "-w", str(wheels)]
    if name == "eaglecpp":  # the default build folder of eaglecpp keeps compiled files
        command += ["-C", f"build-dir={scratch}"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([*command, *PACKAGES[name]], check=True, env=os.environ | {"CCACHE_DISABLE": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "package": name,
        "processor_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "clock_s": time.monotonic() - start,
    }


def table(results: list[dict[str, Any]]) -> str:
    heads = ["package", "processor time", *(f"{n} cores" for n in CORES)]
    rows = [heads, ["---"] * len(heads)]
    total = {"package": "both", "processor_s": sum(r["processor_s"] for r in results)}
    for result in [*results, total] if len(results) > 1 else results:
        minutes = result["processor_s"] / 60
        rows.append([result["package"], *(f"{minutes / n:.1f} min" for n in (1, *CORES))])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PACKAGES), help="packages to build, separated by commas")
    parser.add_argument("--wheels", type=Path, help="folder that keeps the wheels")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    wanted = args.only.split(",")
    if unknown := set(wanted) - set(PACKAGES):
        parser.error(f"unknown package {', '.join(sorted(unknown))}; expected some of {', '.join(PACKAGES)}")
    with tempfile.TemporaryDirectory() as scratch:
        results = [build(name, args.wheels or Path(scratch), scratch) for name in PACKAGES if name in wanted]
    print(table(results))
    for result in results:
        print(f"{result['package']}: {result['clock_s']:.0f} s by the clock", file=sys.stderr)
    if args.json:
        facts: dict[str, Any] = {"machine": platform.platform(), "cores": os.cpu_count(), "results": results}
        facts["date"] = str(datetime.date.today())
        args.json.write_text(json.dumps(facts, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
