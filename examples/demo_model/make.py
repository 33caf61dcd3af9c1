# SPDX-License-Identifier: MIT
"""Trains the demo pair from scratch: `python examples/demo_model/make.py -o build --minutes 60`.

Trains the target with one process per core, writes it as GGUF, generates its answers to questions, and trains
an EAGLE 3.1 drafter on them with `eaglecpp train`. Skips steps whose results exist, so the same command
resumes an interrupted run. `--install` copies the pair and its provenance to `pair/`.

The embedded pair knows the documentation of Python 3.11; a new pair learns from the Python that runs this.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

from dialogues import Dialogues
from facts import collect

HERE = Path(__file__).resolve().parent
PAIR = HERE / "pair"
TARGET, DRAFT = "demo-target.gguf", "demo-draft.gguf"
DRAFTER = "drafter-Q8_0.gguf"  # file name that `eaglecpp train` writes
_LIMIT = 24 * 2**20  # maximum bytes of both files together
_SOURCE = "Python's standard library: docstrings and signatures (PSF License Version 2)"
_FACTS = {
    "name": "eaglecpp demo",
    "description": "A very small chat model that explains Python's standard library",
    "license": "PSF-2.0",
    "organization": "eaglecpp",
}
# By default, glibc returns large blocks to the system at once. Most of the time would then go into page
# faults.
_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("build"))
    parser.add_argument("--minutes", type=float, default=60.0, help="minutes to train the target")
    parser.add_argument("--draft-minutes", type=float, default=30.0, help="minutes to train the drafter")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--prompts", type=int, default=6000, help="number of questions for the target to answer"
    )
    parser.add_argument("--install", action="store_true", help="copy the pair to pair/")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    _train_target(out, options.minutes, options.processes)
    _write_target(out)
    _write_prompts(out / "prompts.jsonl", options.prompts)
    _train_draft(out, options.draft_minutes)
    if options.install:
        _install(out)


def _train_target(out: Path, minutes: float, processes: int) -> None:
    report = out / "target.json"
    if report.exists() and json.loads(report.read_text())["minutes"] >= minutes:
        return
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    command = [*launcher, str(HERE / "train_target.py"), "-o", str(out), "--minutes", str(minutes)]
    _run(command, OMP_NUM_THREADS="1", **_ALLOCATOR)


def _write_target(out: Path) -> None:
    from to_gguf import write_target

    facts = {**_FACTS, "source.data": f"{_SOURCE}, {platform.python_version()}"}
    write_target(out / "target.pt", out / "tokenizer.json", out / TARGET, facts)


def _write_prompts(path: Path, n_prompts: int) -> None:
    """Writes a question about every fact and then random ones, without held-out phrasings and facts."""
    dialogues, rng = Dialogues(collect()), random.Random(11)
    questions = [dialogues.about(fact, rng) for fact in dialogues.known]
    while len(questions) < n_prompts:
        questions.append(dialogues.draw(rng))
    lines = [json.dumps({"messages": [{"role": "user", "content": q.text}]}) for q in questions]
    path.write_text("\n".join(dict.fromkeys(lines)) + "\n", encoding="utf-8")


def _train_draft(out: Path, minutes: float) -> None:
    if (out / "drafter" / DRAFTER).exists():
        return
    command = [sys.executable, "-P", "-m", "eaglecpp", "train", "--target", str(out / TARGET)]
    command += ["--data", str(out / "prompts.jsonl"), "--generate", "-o", str(out / "drafter")]
    command += ["--temp", "0.5", "-n", "160", "--cache", str(out / "states"), "--ttt-steps", "3"]
    _run([*command, "--minutes", str(minutes)])


def _install(out: Path) -> None:
    files = {TARGET: out / TARGET, DRAFT: out / "drafter" / DRAFTER}
    size = sum(path.stat().st_size for path in files.values())
    if size > _LIMIT:
        raise SystemExit(f"expected a pair of at most {_LIMIT} bytes, found {size}")
    report = json.loads((out / "drafter" / "training.json").read_text())
    provenance = {
        "command": " ".join(["python", "examples/demo_model/make.py", *sys.argv[1:]]),
        "data": f"{_SOURCE}, {platform.python_version()}",
        "target": json.loads((out / "target.json").read_text()),
        "drafter": {key: report[key] for key in ("hyper", "steps", "tokens", "seconds", "held_out")},
        "sha256": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()},
    }
    PAIR.mkdir(exist_ok=True)
    for name, path in files.items():
        shutil.copyfile(path, PAIR / name)
    shutil.copyfile(HERE / "NOTICE", PAIR / "NOTICE")
    (PAIR / "MODEL.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


def _run(command: list[str], **env: str) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, env={**os.environ, **env}, check=True)


if __name__ == "__main__":
    main()
