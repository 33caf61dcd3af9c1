# SPDX-License-Identifier: MIT
"""Which checkpoint families are read, and do they compute what PyTorch computes?

    python benchmarks/families.py [--json OUT]

For each family a tiny random checkpoint in its layout is converted (F32) and run: the layout that was
recognised, the file's architecture, the largest difference of a logit from the PyTorch reference over
eight chained steps, and, for the kinds of arithmetic, whether free chains on a tiny pair accept the same
drafts in the same rounds as the reference does. What is refused is tried as well: the reason is the
converter's own.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, facts, table, write_json
from numpy.typing import NDArray

import eaglecpp
from eaglecpp.convert import convert_checkpoint, errors, inspect_file
from eaglecpp.lowlevel import Drafter, DraftFile, EngineOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from parity.cases import CASES, EAGLE1, EAGLE3, EAGLE31, GEMMA, LATENT31, MISTRAL
from parity.steps import CHUNKS, compare_steps
from parity.test_block import SHAPES, Made, differences

from helpers.checkpoints import write_checkpoint
from helpers.random_block import BlockShape
from helpers.random_drafter import DraftShape
from helpers.reference.chain import generate
from helpers.reference.drafter import Drafter as Reference
from helpers.reference.gemma import GemmaDrafter
from helpers.reference.parallel import ParallelDrafter
from helpers.reference.target import Target
from helpers.tiny import TargetSpec, TinyTarget, make_pair, make_target, prompt_ids

EXACT: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "draft_type_kv": "f32", "flash_attn": "off"}
DEPTH, N_TOKENS = 5, 150


@dataclass(frozen=True)
class Family:
    """A family: how its checkpoint is made, and the tiny pair that shows its arithmetic at work."""

    title: str
    layout: str
    shape: DraftShape = EAGLE3
    pair: tuple[str, str] | None = None  # kind, architecture of the target
    edit: dict[str, Any] | None = None
    add: dict[str, Any] | None = None
    readings: dict[str, str] | None = None


ONES = np.ones((4, 4), np.float32)
PARALLEL = DraftShape(n_parallel=8)
FAMILIES = [
    Family("EAGLE-1 and 2 (SafeAILab, LeptonAI)", "", EAGLE1, ("eagle1", "llama")),
    Family("EAGLE-1 with norms (Mistral)", "", MISTRAL),
    Family("EAGLE-3, SafeAILab", "eagle", pair=("eagle3", "llama")),
    Family("EAGLE-3, SpecForge", "specforge"),
    Family("EAGLE-3, vLLM and AngelSlim", "vllm"),
    Family("EAGLE-3, speculators", "speculators"),
    Family("EAGLE-3, Model Optimizer, as engines read it", "modelopt", readings={"feature_norm": "once"}),
    Family("EAGLE-3, Automodel", "automodel"),
    Family("EAGLE 3.1, TorchSpec", "torchspec", EAGLE31, ("eagle31", "llama")),
    Family("EAGLE 3.1 with latent attention (Kimi)", "kimi", LATENT31),
    Family("DeepSpec, Qwen3", "deepspec", CASES["deepspec"], ("deepspec", "qwen3")),
    Family("DeepSpec, Gemma 4", "", GEMMA),
    Family("P-EAGLE", "vllm", PARALLEL),
    Family("PARD", "vllm", edit={"pard_token": 5}),
    Family("Megatron export of several layers", "vllm", add={"midlayer.1.mlp.up_proj.weight": ONES}),
    Family("mixture-of-experts layers", "vllm", add={"layers.0.mlp.experts.0.up_proj.weight": ONES}),
    Family("MTP", "vllm", edit={"architectures": ["MiMoMTPModel"]}),
]
BLOCKS = {
    "DFlash, z-lab": SHAPES["dflash"],
    "DFlash with attention sinks and a value scale (Nemotron, MiMo)": SHAPES["dflash-sinks"],
    "DFlash, DeepSpec": SHAPES["rank-0"],
    "DSpark, DeepSpec": SHAPES["dspark"],
    "DSpark of Gemma 4": SHAPES["dspark-gemma"],
    "DFlash2": SHAPES["dflash2"],
    "Domino": replace(SHAPES["dflash"], extra={"architectures": ["DominoDraftModel"]}),
    "JetSpec": replace(SHAPES["dflash"], extra={"draft_shift": True}),
    "DSpark of DeepSeek-V4": replace(SHAPES["dspark"], extra={"dspark_block_size": 5}),
    "DSpark with a gated head": replace(SHAPES["dspark"], extra={"markov_head_type": "gated"}),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        target = make_target(folder / "target")
        rows = [row(family, target, folder / str(i)) for i, family in enumerate(FAMILIES)]
        rows += [block_row(title, shape, target, folder / title) for title, shape in BLOCKS.items()]
    header = (
        "family",
        "recognised",
        "file",
        "largest logit difference",
        "accepted per depth, as PyTorch",
        "refused because",
    )
    print(table(header, [tuple(one.values()) for one in rows]))
    write_json(options.json, {"families": rows, **facts({})})


def row(family: Family, target: TinyTarget, folder: Path) -> dict[str, str]:
    """One line of the table."""
    line = dict.fromkeys(("family", "recognised", "file", "difference", "accepted", "refused"), "")
    line["family"] = family.title
    checkpoint = write_checkpoint(
        folder / "in", family.layout or "vllm", family.shape, edit=family.edit, add=family.add
    )
    given = None if family.shape.eagle1 or family.shape.gemma else list(family.shape.layers)
    try:
        report = convert_checkpoint(
            checkpoint,
            target.gguf,
            folder / "draft.gguf",
            type="F32",
            aux_layers=given,
            readings=family.readings,
        )
    except (errors.ConvertError, errors.UnsupportedError) as error:
        return line | {"refused": str(error)}
    line |= {"recognised": report.family, "file": report.spec.architecture}
    compare = parallel_difference if family.shape.n_parallel else difference
    line["difference"] = f"{compare(family.shape, target, checkpoint, report.out):.1e}"
    if family.pair is not None:
        line["accepted"] = accepted(folder / "pair", *family.pair)
    return line


def block_row(title: str, shape: BlockShape, target: TinyTarget, folder: Path) -> dict[str, str]:
    """The same of a block drafter: every slot behind random tokens."""
    line = dict.fromkeys(("family", "recognised", "file", "difference", "accepted", "refused"), "")
    line["family"] = title
    try:
        made = Made(shape, shape.gguf(folder, target.gguf), Target(target.directory, [2]).head)
    except (errors.ConvertError, errors.UnsupportedError) as error:
        return line | {"refused": str(error)}
    told = inspect_file(made.gguf)
    line |= {"recognised": told["family"], "file": told["architecture"]}
    return line | {"difference": f"{max(differences(made)[:-1]):.1e}"}


def difference(shape: DraftShape, target: TinyTarget, checkpoint: Path, draft: Path) -> float:
    """Largest absolute difference of a logit, each step fed with the reference's state."""
    options = EngineOptions()
    for name, value in {"n_ctx": 512, "n_threads": 1, **EXACT}.items():
        setattr(options, name, value)
    table_, head = target.weights["model.embed_tokens.weight"], target.weights["lm_head.weight"]
    kind = GemmaDrafter if shape.gemma else Reference
    reference = kind.load(checkpoint, torch.from_numpy(table_), torch.from_numpy(head))
    own = {tensor["name"] for tensor in DraftFile(str(draft)).tensors}
    shared = [
        None if name in own else rows
        for name, rows in (("token_embd.weight", table_), ("output.weight", head))
    ]
    native = Drafter(str(draft), options, *shared)
    return max(step.logits for step in compare_steps(native, reference, rows(shape), teacher_forced=True))


def parallel_difference(shape: DraftShape, target: TinyTarget, checkpoint: Path, draft: Path) -> float:
    """The same over the distributions of one pass."""
    options = EngineOptions()
    for name, value in {"n_ctx": 512, "n_threads": 1, **EXACT}.items():
        setattr(options, name, value)
    native, reference = Drafter(str(draft), options), ParallelDrafter.load(checkpoint)
    features, tokens = rows(shape)
    found = native.commit_ahead(features, tokens, shape.n_parallel - 1)
    expected = reference.ahead(torch.from_numpy(features), tokens, shape.n_parallel - 1)
    return float(np.abs(found - expected.numpy()).max())


def rows(shape: DraftShape) -> tuple[NDArray[np.float32], list[int]]:
    """Random features and tokens."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(len(shape.layers), sum(CHUNKS), shape.n_embd_target)).astype(np.float32)
    return features, rng.integers(0, shape.n_vocab, sum(CHUNKS)).tolist()


def accepted(folder: Path, kind: str, arch: str) -> str:
    """Accepted drafts per depth and the acceptance length, equal to PyTorch's or both."""
    pair = make_pair(folder, kind, TargetSpec.of(arch))
    draft = folder / "draft.gguf"
    convert_checkpoint(pair.checkpoint, pair.target.gguf, draft, type="F32")
    prompt = prompt_ids(40)
    target = Target(pair.target.directory, pair.layers)
    run = generate(
        target, Reference.load(pair.checkpoint, target.embedding, target.head), prompt, N_TOKENS, DEPTH
    )
    found: list[int] = []
    n_tokens = 0
    more: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "strategy": f"chain:{DEPTH}"}
    with (
        eaglecpp.Engine.open(pair.target.gguf, draft=draft, n_ctx=1024, n_threads=1, **EXACT) as engine,
        engine.session() as session,
        session.stream(prompt, max_tokens=N_TOKENS + 2 * DEPTH, **more) as stream,
    ):
        for chunk in stream:
            if chunk.tokens and n_tokens:
                found.append(sum(chunk.accepted))
            n_tokens += len(chunk.tokens)
            if n_tokens >= N_TOKENS:
                break
    depths = [sum(n > depth for n in found) for depth in range(DEPTH)]
    text = f"{'+'.join(map(str, depths))} in {len(found)} rounds, length {sum(depths) / len(found) + 1:.2f}"
    same = (depths, len(found)) == (run.accepted, run.rounds)
    return text + (": the same" if same else f": PyTorch {run.accepted} in {run.rounds}")


if __name__ == "__main__":
    main()
