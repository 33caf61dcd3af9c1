# SPDX-License-Identifier: MIT
"""Compares two ways to get a long prompt after a restart: reading it again, or loading it from a file
(`--prompt-cache`).

Every answer comes from a separate process. Times are from the request to the first token, without loading the
model. `cpu_ratio` compares processor time, for busy machines. Both ways must give the same text. The goal is
that loading a prompt of 8,000 tokens takes at most 0.1 of the time of processing it. The script also measures
how long the answer that wrote the file took to end, and how much slower rounds were while a file was written.

    python benchmarks/prompt_cache.py --target target.gguf --draft draft.gguf --json prompt_cache.json
    python benchmarks/prompt_cache.py --hybrid 768    # a target with recurrent states, of random weights
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import facts, median, note, table, warn_if_busy, write_json

ROOT = Path(__file__).resolve().parents[1]


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """Returns one answer in this process."""
    from eaglecpp import Engine

    draft, sampling = given["draft"], {"temperature": given["temperature"], "seed": 1}
    options = {"n_ctx": given["n_ctx"], "prompt_cache": given["folder"]}
    with Engine.open(given["target"], draft, **options) as engine:
        prompt = engine.tokenize(Path(given["text"]).read_text(encoding="utf-8"))[: given["n"]]
        started, started_cpu = time.perf_counter(), time.process_time()
        with engine.stream(prompt, max_tokens=32, **sampling) as stream:
            next(stream)
            first_ms = 1000 * (time.perf_counter() - started)
            first_cpu_ms = 1000 * (time.process_time() - started_cpu)
            result = stream.finish()
        ended_ms = 1000 * (time.perf_counter() - started)
        # During this answer, the file is still being written.
        more = engine.generate([*prompt, *result.tokens, 10], max_tokens=32, **sampling)
    return {
        "first_ms": first_ms,
        "first_cpu_ms": first_cpu_ms,
        "end_ms": ended_ms - first_ms,
        "round_ms": more.timings.predicted_ms / max(1, more.timings.rounds),
        "reused_n": result.timings.reused_n,
        "tokens": result.tokens,
    }


def in_process(**given: Any) -> dict[str, Any]:
    run = subprocess.run([sys.executable, __file__, "--answer", json.dumps(given)], stdout=subprocess.PIPE)
    if run.returncode != 0:
        raise SystemExit(f"an answer failed with exit status {run.returncode}")
    return dict(json.loads(run.stdout))


def measure(n: int, draft: str | None, temperature: float, args: argparse.Namespace) -> dict[str, Any]:
    options = {"n": n, "draft": draft, "temperature": temperature, "target": args.target, "n_ctx": args.n_ctx}
    options["text"] = args.text
    read, kept, again = [], [], []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            read.append(in_process(**options, folder=""))
            kept.append(in_process(**options, folder=folder))
            again.append(in_process(**options, folder=folder))
            n_bytes = max(path.stat().st_size for path in Path(folder).iterdir())
    made = [*read, *kept, *again]
    if any(one["tokens"] != made[0]["tokens"] for one in made):
        raise SystemExit(f"texts differ: prompt of {n} tokens, draft {draft}, temperature {temperature}")
    if any(one["reused_n"] < 0.9 * n for one in again):
        raise SystemExit(f"the file was not used: prompt of {n} tokens, draft {draft}")
    read_ms, again_ms = (median([one["first_ms"] for one in each]) for each in (read, again))
    read_cpu, again_cpu = (min(one["first_cpu_ms"] for one in each) for each in (read, again))
    return {
        "tokens": n,
        "reused_n": min(one["reused_n"] for one in again),
        "drafter": Path(draft).stem if draft else "none",
        "temperature": temperature,
        "read_ms": read_ms,
        "from_file_ms": again_ms,
        "ratio": again_ms / read_ms,
        "cpu_ratio": again_cpu / read_cpu,
        "file_mb": n_bytes / 1e6,
        "end_ms": median([one["end_ms"] for one in kept]) - median([one["end_ms"] for one in read]),
        "round_ratio": median([one["round_ms"] for one in kept]) / median([one["round_ms"] for one in read]),
    }


def hybrid(folder: Path, width: int, n_ctx: int) -> tuple[str, str]:
    """Writes a target with recurrent states, of random weights, and a drafter. Returns their paths."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.tiny import TargetSpec
    from helpers.tiny_arch import make_forgetful_hybrid

    heads = {"head_dim": 64, "n_heads": width // 64, "n_kv_heads": width // 64}
    spec = TargetSpec(arch="granitehybrid", n_embd=width, n_ff=3 * width, n_ctx=n_ctx, **heads)
    pair = make_forgetful_hybrid(folder, spec, n_state=64)
    return str(pair.target), str(pair.draft)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument(
        "--hybrid", type=int, metavar="WIDTH", help="instead of --target, make a random target of this width"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[1000, 4000, 8000])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--n-ctx", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        print(json.dumps(answer(json.loads(args.answer))))
        return
    if not (args.target or args.hybrid):
        parser.error("--target or --hybrid is needed")
    warn_if_busy()
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file,
    ):
        if args.hybrid:
            args.target, args.draft = hybrid(Path(folder), args.hybrid, args.n_ctx)
        pages = sorted((ROOT / "docs").glob("*.md"))
        file.write("\n".join(page.read_text(encoding="utf-8") for page in pages))
        file.flush()
        args.text = file.name
        report(args)


def report(args: argparse.Namespace) -> None:
    rows = []
    for n in args.tokens:
        for draft in {args.draft: 0, None: 0}:
            for temperature in args.temperature:
                rows.append(measure(n, draft, temperature, args))
                note(" ".join(f"{key}={value}" for key, value in rows[-1].items()))
    names = list(rows[0])
    cells = [[f"{one[k]:.3g}" if isinstance(one[k], float) else str(one[k]) for k in names] for one in rows]
    print(table(names, cells))
    models = {"target": Path(args.target)} | ({"draft": Path(args.draft)} if args.draft else {})
    write_json(args.json, facts(models, n_ctx=args.n_ctx, repeats=args.repeats) | {"rows": rows})


if __name__ == "__main__":
    main()
