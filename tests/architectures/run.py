# SPDX-License-Identifier: MIT
"""Tests every architecture of llama.cpp's own fixture with tiny random models: loads each model, drafts for
the model, finds the exact batch sizes, and compares drafted texts with target-only texts.

    python tests/architectures/run.py --source DIR --libraries DIR [--models DIR] [--types F32 Q8_0 Q4_0]

This program is not part of the default tests. Run it by hand after an update of llama-cpp-python to see what
changed. `--source` is the folder of llama.cpp's sources (`vendor/llama.cpp` of the llama-cpp-python sdist),
and `--libraries` the folder of the libraries built from these sources. The fixture
(tests/test-llama-archs.cpp) is compiled against the libraries, and writes its models to `--models` on the
first run. llama.cpp's quantiser converts the models to the `--types`. Each model gets a random EAGLE 3.1
drafter. Drafts of random models are hardly ever right, so this program tests rejected drafts, trees and the
cells that rejected nodes leave in the cache. Other tests cover accepted drafts with trained pairs.

`--mutations` removes or halves one tensor of each kind. eaglecpp must refuse such a file or compute with it.
If the process dies, a check is missing in native/target/file_checks.cpp.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import eaglecpp
from eaglecpp.errors import EagleError
from helpers.random_drafter import DraftShape
from helpers.tiny_split import Tensors, rewrite

STRATEGIES = ("chain:3", "tree:k=2,depth=3,nodes=6", "auto")
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PROBE = """import sys, eaglecpp
try:
    options = {"n_ctx": 128, "n_threads": 2, "planner_cache": False}
    with eaglecpp.Engine.open(sys.argv[1], **options) as engine:
        engine.generate(list(range(20)), max_tokens=8, ignore_eos=True)
    print("computes")
except eaglecpp.EagleError as error:
    print("refused:", str(error).replace(sys.argv[1], "").splitlines()[0][:150])
"""
N_PROMPT, N_TOKENS, N_CTX = 20, 24, 128
REFUSED, CHAINS, TREES = "refused", "chains", "trees"


@dataclass(frozen=True)
class Found:
    """Results for one model. loads: error of loading, or "". drafting: TREES, CHAINS, or the reason why the
    target takes no drafts. rows: exact batch sizes with the drafter. parted: how many of the `n_texts`
    drafted texts differ from the target-only texts.
    """

    name: str
    type: str
    loads: str = ""
    drafting: str = ""
    rows: str = ""
    n_texts: int = 0
    parted: int = 0
    accepted: int = 0


def main() -> int:
    args = parse()
    models = fixture(args)
    if args.mutations:
        return mutations(models)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for path in models:
            for name in args.types:
                one = examined(path, name, Path(folder), args)
                found.append(one)
                print(line(one), flush=True)
    print(summary(found))
    return int(any(one.parted for one in found))


def fixture(args: argparse.Namespace) -> list[Path]:
    """Returns the models of llama.cpp's fixture, and builds the missing models."""
    args.models.mkdir(parents=True, exist_ok=True)
    if not any(args.models.glob("*.gguf")):
        program = args.models / "fixture"
        source = args.source / "tests" / "test-llama-archs.cpp"
        folders = ("include", "common", "src", "ggml/include", "vendor")
        libraries = ("llama", "llama-common", "ggml", "ggml-base", "ggml-cpu")
        command = ["c++", "-std=c++17", "-O1", *(f"-I{args.source / name}" for name in folders)]
        command += [f"-I{args.source / 'tests'}", str(source), "-o", str(program)]
        command += [
            f"-L{args.libraries}",
            *(f"-l{name}" for name in libraries),
            f"-Wl,-rpath,{args.libraries}",
        ]
        subprocess.run(command, check=True)
        subprocess.run([program, "-o", args.models], check=True, **QUIET)
    return [path for path in sorted(args.models.glob("*.gguf")) if re.search(args.only, path.stem)]


def mutations(models: list[Path]) -> int:
    """Tests each model in its own process, because llama.cpp could end the process."""
    n_bad = 0
    for path in models:
        names = one_of_each_kind(tensor.name for tensor in gguf.GGUFReader(path).tensors)
        for name, halved in itertools.product(names, (False, True)):

            def change(tensors: Tensors, name: str = name, halved: bool = halved) -> None:
                data = tensors.pop(name)
                if halved:
                    tensors[name] = data.astype(np.float16)

            with tempfile.TemporaryDirectory() as folder:
                rewrite(path, Path(folder) / path.name, change, {})
                command = [sys.executable, "-c", PROBE, str(Path(folder) / path.name)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            n_bad += done.returncode != 0
            said = done.stdout.strip() if done.returncode == 0 else f"ended with {done.returncode}"
            print(f"{path.stem} {'with half a' if halved else 'without'} {name}: {said}", flush=True)
    return int(n_bad > 0)


def one_of_each_kind(names: Iterable[str]) -> list[str]:
    """Returns one tensor of each kind in the model's blocks: the first tensor with each name."""
    return list({re.sub(r"\.\d+\.", ".N.", name): name for name in reversed(list(names))}.values())


def examined(path: Path, type_name: str, folder: Path, args: argparse.Namespace) -> Found:
    """Tests one model in one tensor type, and returns the results."""
    name = path.stem
    try:
        target = path if type_name == "F32" else quantised(path, type_name, folder)
        prompts = [np.random.default_rng(seed).integers(0, 128, N_PROMPT).tolist() for seed in range(3)]
        options: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "planner_cache": False}
        with eaglecpp.Engine.open(target, **options) as engine:
            plain = texts(engine, prompts, "off")
    except EagleError as error:
        return Found(name, type_name, loads=short(error))
    try:
        with eaglecpp.Engine.open(target, draft=drafter(target, folder), **options) as engine:
            rows, chains = engine.measure_exactness().rows, engine.chains_only
            n_texts = parted = accepted = 0
            for strategy in STRATEGIES:
                if chains and strategy.startswith("tree"):
                    continue
                for mine, theirs in zip(texts(engine, prompts, strategy), plain, strict=True):
                    n_texts, parted = n_texts + 1, parted + (mine.tokens != theirs.tokens)
                    accepted += mine.timings.draft_n_accepted
    except EagleError as error:
        return Found(name, type_name, drafting=f"{REFUSED}: {short(error)}")
    drafting = CHAINS if chains else TREES
    return Found(name, type_name, "", drafting, rows, n_texts, parted, accepted)


def texts(engine: eaglecpp.Engine, prompts: list[list[int]], strategy: str) -> list[eaglecpp.Completion]:
    """Returns greedy and sampled answers to several prompts. The second half of the answers to a prompt
    continues the first half.
    """
    said = []
    for prompt in prompts:
        for temperature in (0.0, 0.8):
            options: dict[str, Any] = {
                "temperature": temperature, "seed": 1, "max_tokens": N_TOKENS, "ignore_eos": True,
                "strategy": strategy,
            }  # fmt: skip
            engine.clear()
            first = engine.generate(prompt, **options)
            said += [first, engine.generate([*prompt, *first.tokens, 5, 6, 7], **options)]
    return said


def drafter(target: Path, folder: Path) -> Path:
    """Writes a random EAGLE 3.1 drafter that fits the target."""
    reader = gguf.GGUFReader(target)
    arch = reader.fields["general.architecture"].contents()
    n_embd = int(reader.fields[f"{arch}.embedding_length"].contents())
    n_layer = int(reader.fields[f"{arch}.block_count"].contents())
    n_vocab = len(reader.fields["tokenizer.ggml.tokens"].contents())
    # Layer 0 is left out, because some architectures cannot extract feature 0.
    layers = tuple(sorted({1, max(n_layer // 2, 1), max(n_layer - 1, 1)}))
    shape = DraftShape(
        n_embd_target=n_embd, layers=layers, n_vocab=n_vocab, n_draft_vocab=n_vocab, fc_norm=True,
        norm_output=True,
    )  # fmt: skip
    return shape.gguf(folder, target)


def quantised(path: Path, type_name: str, folder: Path) -> Path:
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{type_name}")
    out = folder / "target.gguf"
    if llama_cpp.llama_model_quantize(os.fsencode(path), os.fsencode(out), options) != 0:
        raise EagleError(f"llama.cpp's quantiser refuses {path.name}")
    return out


def short(error: Exception) -> str:
    """Returns a message without paths, because paths differ between runs."""
    return re.sub(r"/\S*/", "", str(error)).splitlines()[0][:110]


def line(one: Found) -> str:
    if one.loads:
        return f"{one.name:22} {one.type:5} does not load: {one.loads}"
    if one.drafting.startswith(REFUSED):
        return f"{one.name:22} {one.type:5} {one.drafting}"
    verdict = f"{one.parted} of {one.n_texts} texts differ"
    return (
        f"{one.name:22} {one.type:5} {one.drafting:6} exact {one.rows:14} {verdict}, {one.accepted} accepted"
    )


def summary(found: list[Found]) -> str:
    counts = Counter("does not load" if one.loads else one.drafting.partition(":")[0] for one in found)
    parted = sum(one.parted for one in found)
    kinds = ", ".join(f"{kind}: {n}" for kind, n in counts.most_common())
    return f"{len(found)} models. {kinds}. {parted} of {sum(one.n_texts for one in found)} texts differ."


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="llama.cpp's sources; needed to build --models")
    parser.add_argument("--libraries", type=Path, help="folder with llama.cpp's libllama and libllama-common")
    parser.add_argument("--models", type=Path, default=Path("build/architectures"))
    parser.add_argument("--types", nargs="+", default=["F32", "Q8_0", "Q4_0"])
    parser.add_argument("--only", default="", help="regular expression for names of architectures")
    parser.add_argument(
        "--mutations", action="store_true", help="test files in which a tensor is missing or halved"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
