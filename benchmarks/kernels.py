# SPDX-License-Identifier: MIT
"""Our kernels against llama.cpp's: what rows, plain decoding, prompts, loading and memory cost, goal by goal.

    python benchmarks/kernels.py --target smollm2-Q8_0.gguf --target wide-Q8_0.gguf ... --out DIR
        --llama-server PATH [--llama-bench PATH] [--ik PATH] [--only PART,...] [--resume]

llama.cpp runs in processes that never load anything of ours (`kernel_workers.py`, `llama-server`), with its
default options; both are open at once and take turns. Each part of each target is measured in less than 90 s
and written to DIR/kernels.json at once: `--seconds` ends the run before the next part once so many have
passed, with exit status 3, and `--resume` goes on, so that

    until python benchmarks/kernels.py ... --out DIR --resume --seconds 45; do :; done

leaves the machine in between. `--report` prints what is there. Which goals a target has follows its name
(`kernel_goals.py`), and whether they are those of AVX-512 the kernels that run: EAGLECPP_KERNELS=avx2 in the
environment takes AVX2's, into another --out. llama.cpp's own kernels know nothing of that variable: give
builds of the same llama.cpp for AVX2 (-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON) to
--llama-libs, --llama-bench and --llama-server. Parts:

    rows       1 to 16 rows, all with logits, beside llama.cpp's; llama-bench's single row as a check;
               with --ik beside ik_llama.cpp's, too
    plain      decoding without a drafter, greedy and at 0.8, beside llama-server, greedy beside llama-bench
    prompt     prompts of 512 and 4096
    load       time to load a file that is in the page cache, and memory behind it
    behind     1 and 4 rows behind 1000 tokens
    bandwidth  one row of a memory-bound target against a loop that only reads

What drafting gains on these targets `compare.py` measures, and decoding on busy cores `busy.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from common import arguments, facts, model_facts, note, resumed, warn_if_busy, write_whole
from kernel_goals import Measured
from kernel_parts import PARTS, WIDE_ONLY, Bench
from kernel_report import OTHERS_MAX, cpu_flags, report

from eaglecpp.lowlevel import system_info

LEFT = 3  # exit status: parts are left


class Journal:
    """What was measured, on disk after every part: `document["parts"]["NAME PART"]`."""

    def __init__(self, path: Path, identity: dict[str, Any], resume: bool) -> None:
        """Raises `SystemExit` when the file is there and cannot be, or is not to be, gone on with."""
        self.path, identity = path, json.loads(json.dumps(identity))
        before = resumed(path, identity, resume)
        self.document = {
            "identity": before.get("identity", {}) | identity,
            "parts": before.get("parts", {}),
        }

    def has(self, name: str, part: str, others_max: float = 1.0) -> bool:
        """Whether it was measured while other programs took no more than `others_max` of the machine."""
        found = self.document["parts"].get(f"{name} {part}")
        if found is None:
            return False
        return bool(found["about"].get("others", 0.0) <= others_max)

    def add(self, name: str, part: str, found: dict[str, Any], about: dict[str, Any]) -> None:
        self.document["parts"][f"{name} {part}"] = found | {"about": about}
        write_whole(self.path, self.document)

    def of(self, path: Path) -> Measured:
        kind = str(model_facts(path)["type"])
        parts = self.document["parts"]
        found = {name: parts[f"{path.stem} {name}"] for name in PARTS if f"{path.stem} {name}" in parts}
        return Measured(path.stem, kind, found)


def measure(args: argparse.Namespace, journal: Journal) -> bool:
    """Part by part; False when time was up before all were done."""
    start = time.monotonic()
    for part in args.only:
        for path in args.target:
            bench = Bench(args, path)
            if journal.has(bench.name, part, args.others_max) or (
                part in WIDE_ONLY and not bench.name.startswith("wide")
            ):
                continue
            if args.seconds is not None and time.monotonic() - start > args.seconds:
                note(f"{args.seconds:g} s are over before {part} of {bench.name}; --resume goes on")
                return False
            note(f"{bench.name}: {part}")
            before = Busy.now()
            found = PARTS[part](bench)
            others = Busy.now().others_since(before)
            if others > OTHERS_MAX:
                note(
                    f"{bench.name}: {part}: {100 * others:.0f} % of the processor time went to other programs"
                )
            journal.add(bench.name, part, found, about(args, path) | {"others": others})
    return True


@dataclasses.dataclass(frozen=True)
class Busy:
    """Seconds of processor time until now, all cores together."""

    wall: float
    all: float  # programs of the whole machine
    own: float  # this one and those it has started and waited for

    @classmethod
    def now(cls) -> Busy:
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        try:
            fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
        except OSError:
            return cls(time.monotonic(), own, own)
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, fields)
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), (user + nice + system + irq + softirq) / ticks, own)

    def others_since(self, before: Busy) -> float:
        """The share of the machine's time that other programs had."""
        theirs = (self.all - before.all) - (self.own - before.own)
        return max(0.0, theirs) / ((self.wall - before.wall) * (os.cpu_count() or 1))


def about(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Models, machine, commit, versions and date of one part."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
    kernels = system_info()["kernels"]
    own = {"date": now, "flags": cpu_flags(), "kernels": kernels}
    return facts({"target": path}, options=dict(args.option)) | own


def option(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, value


def words(text: str) -> list[str]:
    found = [word for word in text.split(",") if word]
    unknown = [word for word in found if word not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: expected some of {', '.join(PARTS)}")
    return found


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, action="append", required=True, help="repeatable")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server, for plain")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's own benchmark, as a check")
    parser.add_argument(
        "--llama-libs", type=Path, help="folder with another build's libggml-cpu, for llama.cpp"
    )
    parser.add_argument("--ik", type=Path, help="ik_llama.cpp's llama-batched-bench: its rows, repacked")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--only", type=words, help=f"of {','.join(PARTS)}; default all that can be measured")
    parser.add_argument("--seconds", type=float, help="begin no further part after so many")
    parser.add_argument("--resume", action="store_true", help="go on with what is in --out")
    parser.add_argument(
        "--others-max",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="with --resume: measure again what was measured while others took more of the processor time",
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, print what is in --out")
    parser.add_argument(
        "--option", type=option, action="append", default=[], help="of our engines, NAME=VALUE"
    )
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5, help="batches in a turn")
    parser.add_argument("--n-prompts", type=int, default=3)
    parser.add_argument("--n-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="0 = physical cores")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="prompts of 512 in processor time, where other programs run; with --threads 1, for threads that "
        "wait take it, too",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    info = system_info()
    args.threads = args.threads or info["n_cores"]
    args.repack = not info["amx"]["claimed"] or info["amx"]["works"]
    args.kernels = info["kernels"]["table"] if info["kernels"]["active"] else "ggml"
    args.isa_avx512 = args.kernels == "avx512"
    given = [args.llama_server, args.llama_bench, args.ik, *args.target]
    missing = [path for path in given if path is not None and not path.is_file()]
    if missing:
        parser.error(f"{missing[0]} is not a file")
    if args.llama_server is None and args.only is None:
        note("plain is not measured: --llama-server is missing")
    elif args.llama_server is None and "plain" in args.only:
        parser.error("plain needs --llama-server")
    args.only = args.only or [part for part in PARTS if part != "plain" or args.llama_server]
    return args


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    names = ("threads", "n_tokens", "seed", "option", "kernels", "processor_time")
    identity = {name: getattr(args, name) for name in names}
    identity |= {f"bytes of {path.stem}": path.stat().st_size for path in args.target}
    journal = Journal(args.out / "kernels.json", identity, args.resume or args.report)
    if not args.report:
        warn_if_busy()
        if not measure(args, journal):
            sys.exit(LEFT)
    report(args, [journal.of(path) for path in args.target], journal.document)


if __name__ == "__main__":
    main()
