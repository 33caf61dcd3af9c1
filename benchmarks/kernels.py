# SPDX-License-Identifier: MIT
"""Our kernels against llama.cpp's: what rows, plain decoding, prompts, loading and memory cost, goal by goal.

    python benchmarks/kernels.py --target smollm2-Q8_0.gguf --target wide-Q8_0.gguf ... --out DIR
        --llama-server PATH [--llama-bench PATH] [--draft D.gguf ...] [--only PART,...] [--resume]

llama.cpp runs in processes that never load anything of ours (`kernel_workers.py`, `llama-server`), with its
default options; both are open at once and take turns. Each part of each target is measured in less than 90 s
and written to DIR/kernels.json at once: `--seconds` ends the run before the next part once so many have
passed, with exit status 3, and `--resume` goes on, so that

    until python benchmarks/kernels.py ... --out DIR --resume --seconds 45; do :; done

leaves the machine in between. Which goals a target has follows its name (`kernel_goals.py`). Parts:

    rows       1 to 16 rows, all with logits, beside llama.cpp's; llama-bench's single row, if faster, counts
    plain      decoding without a drafter, greedy and at 0.8, beside llama-server
    prompt     prompts of 512 and 4096
    load       time to load a file that is in the page cache, and memory behind it
    behind     1 and 4 rows behind 1000 tokens
    bandwidth  one row of a memory-bound target against a loop that only reads
    auto       the planner beside llama-server plain and with each `draft-eagle3` setting (`--draft`)
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bandwidth import read_bandwidth
from common import facts, median, model_facts, note, table, warn_if_busy, write_json
from compare import one_prompt
from compare_targets import BenchmarkTarget, drafters_by_kind
from contestants import Request, Settings, line_up, open_field
from kernel_goals import Measured, Verdict, goals_of, over_own, over_their_one, verdicts
from kernel_workers import Worker
from prompt_sets import make_prompts

from eaglecpp.lowlevel import system_info

ROWS = (1, 2, 3, 4, 8, 16)
PROMPTS = (512, 4096)
N_CTX = max(PROMPTS) + 256
BEHIND = 1000
TEMPERATURES = (0.0, 0.8)
LEFT = 3  # exit status: parts are left
OTHERS_MAX = 0.03  # share of the processor time that other programs may take without a note


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every part needs to know."""

    args: argparse.Namespace
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    def worker(self, kind: str, n_ctx: int = N_CTX) -> Worker:
        options = {"repack": self.args.repack} if kind == "theirs" else dict(self.args.option)
        return Worker(kind, self.path, n_ctx, self.args.threads, **options)


def of_rows(bench: Bench) -> dict[str, Any]:
    with bench.worker("rows") as ours, bench.worker("theirs") as theirs:
        found = in_turns(bench, {"ours": ours, "theirs": theirs}, ROWS, 0)
    times = llama_bench(bench, ROWS[:1])
    return found | ({"bench": times} if times else {})


def of_behind(bench: Bench) -> dict[str, Any]:
    with bench.worker("rows") as ours, bench.worker("theirs") as theirs:
        return in_turns(bench, {"ours": ours, "theirs": theirs}, (1, 4), BEHIND)


def in_turns(
    bench: Bench, workers: Mapping[str, Worker], rows: tuple[int, ...], behind: int
) -> dict[str, Any]:
    """Median milliseconds of a few batches, by turn. Both run one number of rows right after each other. The
    first turn builds graphs and does not count.
    """
    found: dict[str, Any] = {who: {str(n): [] for n in rows} for who in workers}
    for turn in range(bench.args.turns + 1):
        for n in rows:
            for who in list(workers) if turn % 2 else list(workers)[::-1]:
                ms = workers[who].ask("rows", n=n, behind=behind, repeats=bench.args.repeats)
                if turn:
                    found[who][str(n)].append(median(ms))
    return found


def llama_bench(bench: Bench, prompts: tuple[int, ...]) -> dict[str, float]:
    """Median milliseconds of reading prompts of so many tokens, by llama.cpp's own benchmark."""
    if bench.args.llama_bench is None:
        return {}
    command = [bench.args.llama_bench, "-m", bench.path, "-n", 0, "-p", ",".join(map(str, prompts))]
    command += ["-r", 10 if max(prompts) < 64 else 3, "-t", bench.args.threads, "-o", "json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"llama-bench ended with {done.returncode}\n{done.stderr[-2000:]}")
    return {str(run["n_prompt"]): median(run["samples_ns"]) / 1e6 for run in json.loads(done.stdout)}


def of_plain(bench: Bench) -> dict[str, Any]:
    args = bench.args
    settings = Settings((), (), args.llama_server, 512, args.threads, with_ngram=False, options=args.option)
    runs = []
    with open_field(BenchmarkTarget(bench.name, bench.path, {}), settings) as field:
        prompts = make_prompts("code", field.engine, args.n_prompts, 64, args.seed)
        for generate in field.generate.values():
            generate(Request(prompts[0], 16, 0.0, args.seed))
        for i, prompt in enumerate(prompts):
            for temperature in TEMPERATURES:
                request = Request(prompt, args.n_tokens, temperature, args.seed + i)
                runs += one_prompt(field, field.contestants, i % 2, ("code", temperature), i, request)
    return {"runs": [dataclasses.asdict(run) for run in runs]}


def of_prompt(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with bench.worker("engine") as ours, bench.worker("theirs") as theirs:
        for worker in (ours, theirs):
            worker.ask("prompt", n=64)
        for n in PROMPTS:
            n_turns = 3 if n < 1000 else 1
            turns: dict[str, list[float]] = {"ours": [], "theirs": []}
            for _ in range(n_turns):
                turns["ours"].append(ours.ask("prompt", n=n))
                turns["theirs"].append(theirs.ask("prompt", n=n))
            found[str(n)] = turns
    times = llama_bench(bench, PROMPTS[:1])
    for n_text, ms in times.items():
        found[n_text]["bench"] = ms
    return found


def of_load(bench: Bench) -> dict[str, Any]:
    """Each in a process of its own; the first pair warms the page cache and whatever is kept on disk."""
    found: dict[str, Any] = {"ours": [], "theirs": [], "memory": {}}
    for turn in range(4):
        for who, kind in (("ours", "engine"), ("theirs", "theirs")):
            with bench.worker(kind, 1024) as worker:
                if turn:
                    found[who].append(worker.load_ms)
                found["memory"][who] = worker.ask("memory")
    return found


def of_bandwidth(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {"bytes": bytes_per_token(bench.path), "ours": [], "machine": []}
    with bench.worker("rows") as ours:
        for turn in range(bench.args.turns + 1):
            ms = ours.ask("rows", n=1, behind=0, repeats=bench.args.repeats)
            speed = read_bandwidth(bench.args.threads)
            if turn:
                found["ours"].append(median(ms))
                found["machine"].append(speed)
    return found


def bytes_per_token(path: Path) -> int:
    """Weights that a single row reads, as they are in the file: all but embeddings that are looked up."""
    import gguf

    tensors = gguf.GGUFReader(path).tensors
    is_tied = all(tensor.name != "output.weight" for tensor in tensors)
    return sum(int(t.n_bytes) for t in tensors if is_tied or t.name != "token_embd.weight")


def of_auto(bench: Bench) -> dict[str, Any]:
    """`compare.py` on this target, code only, in a folder of its own, from which it goes on by itself."""
    args, out = bench.args, bench.args.out / f"auto-{bench.name}"
    command = [sys.executable, Path(__file__).with_name("compare.py"), "--target", bench.path]
    command += [word for draft in args.draft for word in ("--draft", draft)]
    command += ["--llama-server", args.llama_server, "--out", out, "--sets", "code", "--fixed", ""]
    command += ["--threads", args.threads, "--minutes", 1.1, "--n-prompts", args.n_prompts, "--resume"]
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=sys.stderr, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"compare.py ended with {done.returncode}")
    document = json.loads((out / f"{bench.name}.json").read_text(encoding="utf-8"))
    n_runs = len({(run["temperature"], run["prompt"]) for run in document["runs"]})
    settings = Settings((), range(1, 9), args.llama_server, 512, args.threads)
    contestants = line_up(list(drafters_by_kind(args.draft)), settings)
    return {
        "runs": document["runs"],
        "contestants": [dataclasses.asdict(one) for one in contestants],
        "is_complete": n_runs >= len(TEMPERATURES) * args.n_prompts,
    }


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "rows": of_rows,
    "plain": of_plain,
    "prompt": of_prompt,
    "load": of_load,
    "behind": of_behind,
    "bandwidth": of_bandwidth,
    "auto": of_auto,
}
WIDE_ONLY = ("behind", "bandwidth", "auto")


class Journal:
    """What was measured, on disk after every part: `document["parts"]["NAME PART"]`."""

    def __init__(self, path: Path, identity: dict[str, Any], resume: bool) -> None:
        """Raises `SystemExit` when the file is there and cannot be, or is not to be, gone on with."""
        self.path = path
        self.document: dict[str, Any] = {"identity": json.loads(json.dumps(identity)), "parts": {}}
        if not path.exists():
            return
        if not resume:
            raise SystemExit(f"{path} exists: go on with it (--resume), or choose another --out")
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            was, now = before["identity"], self.document["identity"]
            differing = [key for key in now if was.get(key, now[key]) != now[key]]
            parts = before["parts"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(f"{path}: not a result of this script: {error!r}") from None
        if differing:
            key = differing[0]
            raise SystemExit(
                f"{path}: {key} was {was.get(key)!r} and is {now[key]!r}: resume with the same settings"
            )
        self.document = {"identity": was | now, "parts": parts}

    def has(self, name: str, part: str, others_max: float = 1.0) -> bool:
        """Whether it was measured while other programs took no more than `others_max` of the machine."""
        found = self.document["parts"].get(f"{name} {part}")
        if found is None or not found.get("is_complete", True):
            return False
        return bool(found["about"].get("others", 0.0) <= others_max)

    def add(self, name: str, part: str, found: dict[str, Any], about: dict[str, Any]) -> None:
        self.document["parts"][f"{name} {part}"] = found | {"about": about}
        partial = self.path.with_name(self.path.name + ".part")
        write_json(partial, self.document)
        partial.replace(self.path)

    def of(self, path: Path) -> Measured:
        kind = str(model_facts(path)["type"])
        parts = self.document["parts"]
        return Measured(
            path.stem, kind, {n: parts[f"{path.stem} {n}"] for n in PARTS if self.has(path.stem, n)}
        )


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
    return facts({"target": path}, options=dict(args.option)) | {"date": now, "flags": cpu_flags()}


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
    lines = []
    for one in targets:
        if "rows" not in one.parts:
            continue
        rows = one.parts["rows"]
        for who in ("theirs", "ours"):
            lines.append([one.name, {"theirs": "llama.cpp, ms", "ours": "ours, ms"}[who]])
            lines[-1] += [median(rows[who][n]) for n in rows[who]]
        lines.append(["", "over llama.cpp's T(1)", *(over_their_one(rows, n) for n in rows["ours"])])
        lines.append(["", "over llama.cpp's T(n)", *(over_own(rows, n) for n in rows["ours"])])
    print(table(["target", "", *(f"T({n})" for n in ROWS)], lines))


def print_loads(targets: list[Measured]) -> None:
    lines = []
    for one in targets:
        load = one.parts.get("load")
        for who in ("theirs", "ours") if load else ():
            found = load["memory"][who]
            sizes = [f"{found[k] / 2**20:.0f}" for k in ("rss", "pss", "pss_anonymous", "pss_file")]
            name = "llama.cpp" if who == "theirs" else "eaglecpp"
            lines.append([one.name, name, f"{median(load[who]):.0f}", *sizes])
    print(table(["target", "", "load, ms", "RSS, MiB", "PSS", "anonymous", "file-backed"], lines))


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


def report(args: argparse.Namespace, journal: Journal) -> None:
    targets = [journal.of(path) for path in args.target]
    flags = cpu_flags()
    found = verdicts(targets, args.isa_avx512)
    print_rows(targets)
    print()
    print_loads(targets)
    print()
    print_verdicts(found, args.isa_avx512)
    parts = [part["about"] for part in journal.document["parts"].values()]
    for what in ("commit", "date"):
        seen = sorted({str(part[what]) for part in parts})
        print(f"\n{what}: {seen[0]}{f' to {seen[-1]}' if len(seen) > 1 else ''}" if seen else "")
    disturbed = [
        (key, part["about"]["others"])
        for key, part in journal.document["parts"].items()
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
    write_json(args.json, journal.document | {"verdicts": rows, "flags": flags} | facts({}))


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, action="append", required=True, help="repeatable")
    parser.add_argument(
        "--draft", type=Path, action="append", default=[], help="of the wide targets, for auto"
    )
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server, for plain and auto")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's own benchmark, as a check")
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
    parser.add_argument("--avx2", action="store_true", help="the goals of AVX2 alone, whatever this CPU has")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5, help="batches in a turn")
    parser.add_argument("--n-prompts", type=int, default=3)
    parser.add_argument("--n-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="0 = physical cores")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    info = system_info()
    args.threads = args.threads or info["n_cores"]
    args.repack = not info["amx"]["claimed"] or info["amx"]["works"]
    args.isa_avx512 = "avx512_vnni" in cpu_flags() and not args.avx2
    given = [args.llama_server, args.llama_bench, *args.target, *args.draft]
    missing = [path for path in given if path is not None and not path.is_file()]
    if missing:
        parser.error(f"{missing[0]} is not a file")
    needs = {"plain": args.llama_server, "auto": args.llama_server and args.draft}
    impossible = [part for part in PARTS if part in needs and not needs[part]]
    if args.only is None:
        args.only = [part for part in PARTS if part not in impossible]
        if impossible:
            note(f"not measured without --llama-server and --draft: {', '.join(impossible)}")
    elif set(args.only) & set(impossible):
        parser.error("plain needs --llama-server, auto needs --draft as well")
    return args


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    identity = {name: getattr(args, name) for name in ("threads", "n_tokens", "seed", "option")}
    identity |= {f"bytes of {path.stem}": path.stat().st_size for path in args.target}
    journal = Journal(args.out / "kernels.json", identity, args.resume or args.report)
    if not args.report:
        warn_if_busy()
        if not measure(args, journal):
            sys.exit(LEFT)
    report(args, journal)


if __name__ == "__main__":
    main()
