# SPDX-License-Identifier: MIT
"""Measures the time from the start of `eaglecpp run smollm2 "..."` to the first byte that it writes.

Three lower bounds are measured in turns with `run`: `python -c "import llama_cpp"`, a Python that does
nothing, and `eaglecpp --version`. The first round fills the page cache and is not counted. With a large
model, most of the time is loading the model.

    python benchmarks/startup.py [--target target.gguf] [--draft draft.gguf] --json startup.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import facts, median, note, table, warn_if_busy, write_json

EAGLECPP = str(Path(sys.executable).with_name("eaglecpp"))


def to_first_byte(command: Sequence[str]) -> float:
    """Returns milliseconds until the process writes its first byte to stdout. Raises `SystemExit` if the
    process fails.
    """
    started = time.perf_counter()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd="/", bufsize=0
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.read(1)
        elapsed = 1000 * (time.perf_counter() - started)
        process.stdout.read()
        errors = process.stderr.read().decode("utf-8", "replace")
    if not first or process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}\n{errors}")
    return elapsed


def to_end(command: Sequence[str]) -> float:
    """Returns milliseconds until the process has ended."""
    started = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/", check=True)
    return 1000 * (time.perf_counter() - started)


def measure(run: Sequence[str], repeats: int) -> dict[str, list[float]]:
    """Returns the times of all four commands, measured in turns. The first round fills the page cache and is
    not counted.
    """
    python = sys.executable
    times: dict[str, list[float]] = {"run": [], "import llama_cpp": [], "python": [], "--version": []}
    for repeat in range(repeats + 1):
        taken = {
            "run": to_first_byte(run),
            "import llama_cpp": to_end([python, "-c", "import llama_cpp"]),
            "python": to_end([python, "-c", "pass"]),
            "--version": to_end([EAGLECPP, "--version"]),
        }
        if repeat:
            for name, elapsed in taken.items():
                times[name].append(elapsed)
    return times


def chosen(target: Path | None, draft: Path | None) -> tuple[list[str], dict[str, Path]]:
    """Returns the arguments of `eaglecpp run` for the model, and the model's files. Raises `SystemExit` if
    smollm2 is missing.
    """
    if target is None:
        from eaglecpp.errors import ModelNotFoundError
        from eaglecpp.opening.find import find_target

        try:
            smollm2 = find_target("smollm2")
        except ModelNotFoundError as error:
            raise SystemExit(f"{error}; or give --target") from None
        assert smollm2.draft is not None
        return ["smollm2"], {"target": smollm2.target, "draft": smollm2.draft}
    if draft is None:
        return [str(target.resolve())], {"target": target}
    models = {"target": target, "draft": draft}
    return [str(target.resolve()), "--draft", str(draft.resolve())], models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", type=Path, help="default: smollm2")
    parser.add_argument("--draft", type=Path, help="drafter of --target; smollm2 has its own drafter")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--threads", type=int, default=0, help="0 = number of physical cores")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.target is None and args.draft is not None:
        parser.error("--draft needs --target")
    warn_if_busy()
    model, models = chosen(args.target, args.draft)
    run = [EAGLECPP, "run", *model, args.prompt, "-n", "8", "--temp", "0", "-t", str(args.threads)]
    times = measure(run, args.repeats)
    rows = [
        (
            {"run": "run, first token", "--version": "eaglecpp --version"}.get(name, name),
            median(values),
            min(values),
            median(values) / median(times["import llama_cpp"]),
        )
        for name, values in times.items()
    ]
    print(table(("what", "median ms", "fastest ms", "x import llama_cpp"), rows))
    note(f"median times of {args.repeats} rounds, in which the commands take turns")
    write_json(args.json, {"times_ms": times, **facts(models, repeats=args.repeats, prompt=args.prompt)})


if __name__ == "__main__":
    main()
