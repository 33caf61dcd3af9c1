# SPDX-License-Identifier: MIT
"""One layer of latent attention in Kimi's dimensions against PyTorch, by the type of the drafter's file.

    python tests/parity/full_size.py [--type F32 ...] [--vocab 4096] [--width 7168] [--feed-forward 18432]

Not part of the default tests: it takes some 9 GB of memory and as many of disk, and minutes. Everything of
the layer and of the fusion has the sizes of lightseekorg/kimi-k2.6-eagle3.1-mla (width 7168, 64 heads, ranks
1536 and 512, feed-forward 18432, three features, YaRN); the weights are random and the vocabulary is cut to
`--vocab`, as a head does the same to each of its rows. Both sides commit the same rows and draft `N_STEPS`
more, each fed the reference's state. Exit status 1 when a difference is above its type's bound.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eaglecpp.convert import convert_checkpoint
from eaglecpp.lowlevel import Drafter, EngineOptions
from helpers.random_drafter import DraftShape, LatentShape
from helpers.reference.drafter import Drafter as ReferenceDrafter

N_ROWS, N_STEPS, N_BLOCKS = 12, 5, 61
KIMI_YARN = {
    "type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
KIMI = DraftShape(
    n_embd=7168, n_embd_target=7168, layers=(2, 30, 58), n_heads=64, n_kv_heads=64, n_ff=18432,
    rope=KIMI_YARN, fc_norm=True, norm_output=True,
    latent=LatentShape(q_rank=1536, kv_rank=512, nope=128, rope=64, value=128),
)  # fmt: skip
BOUNDS = {"F32": 2e-5, "BF16": 5e-3, "F16": 1e-3, "Q8_0": 5e-2, "Q4_K": 0.4}
"""Root mean square difference of the logits and states, over the spread of the reference's; weights are exact
in bf16, so the first three differ by the rounding of activations alone."""


def write_target(path: Path, shape: DraftShape) -> None:
    """The keys that a conversion reads, and no tensors."""
    writer = gguf.GGUFWriter(path, "deepseek2")
    n_vocab = shape.n_vocab
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(N_BLOCKS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("kimi-k2")
    writer.add_token_list([f"token{i}" for i in range(n_vocab)])
    writer.add_token_types([1] * n_vocab)
    writer.add_token_merges([f"token{i} token{i + 1}" for i in range(n_vocab - 1)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def write_checkpoint(directory: Path, shape: DraftShape) -> None:
    """In bf16."""
    from safetensors.torch import save_file

    weights = {name: torch.from_numpy(np.asarray(value)) for name, value in shape.weights().items()}
    stored = {n: t.to(torch.bfloat16) if t.is_floating_point() else t for n, t in weights.items()}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(shape.config()), encoding="utf-8")
    save_file(stored, directory / "model.safetensors")


def expected(
    checkpoint: Path, features: np.ndarray, tokens: list[int]
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Per step: the token that was embedded, the logits and the state."""
    drafter = ReferenceDrafter.load(checkpoint)
    logits, state = drafter.commit(torch.from_numpy(features), tokens)
    found = [(-1, logits.numpy(), state.numpy())]
    for step in range(1, N_STEPS):
        token = int(drafter.target_ids[logits.argmax()])
        rows, states = drafter.extend(state[None], [token], [step - 2], step)
        logits, state = rows[0], states[0]
        found.append((token, logits.numpy(), state.numpy()))
    return found


def differences(
    draft: Path, features: np.ndarray, tokens: list[int], steps: list[tuple[int, np.ndarray, np.ndarray]]
) -> tuple[float, float]:
    """Of the logits and of the states, the largest of all steps, relative to the reference's spread."""
    options = EngineOptions()
    options.n_ctx, options.draft_type_kv, options.draft_device = 256, "f32", "cpu"
    drafter = Drafter(str(draft), options)
    logits, state = drafter.commit(features, tokens)
    worst = [0.0, 0.0]
    for step, (token, their_logits, their_state) in enumerate(steps):
        if step:
            fed = steps[step - 1][2]
            rows, states = drafter.extend(fed[None], [token], [step - 2], step)
            logits, state = rows[0], states[0]
        for i, (ours, theirs) in enumerate(((logits, their_logits), (state, their_state))):
            worst[i] = max(worst[i], float(np.sqrt(np.square(ours - theirs).mean()) / theirs.std()))
    return worst[0], worst[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--type", nargs="+", default=list(BOUNDS), choices=list(BOUNDS))
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument(
        "--width", type=int, default=KIMI.n_embd, help="less: a quicker run, attention in full"
    )
    parser.add_argument("--feed-forward", type=int, default=KIMI.n_ff)
    args = parser.parse_args()
    sizes = {"n_embd": args.width, "n_embd_target": args.width, "n_ff": args.feed_forward}
    shape = replace(KIMI, n_vocab=args.vocab, n_draft_vocab=args.vocab, **sizes)
    rng = np.random.default_rng(5)
    features = (3.0 * rng.normal(size=(3, N_ROWS, args.width))).astype(np.float32)
    tokens = rng.integers(0, args.vocab, N_ROWS).tolist()
    n_failed = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_target(root / "target.gguf", shape)
        write_checkpoint(root / "checkpoint", shape)
        gc.collect()
        steps = expected(root / "checkpoint", features, tokens)
        gc.collect()
        print("| type | logits | states | bound | seconds to convert |\n| --- | --- | --- | --- | --- |")
        for kind in args.type:
            start = time.perf_counter()
            convert_checkpoint(root / "checkpoint", root / "target.gguf", root / "draft.gguf", kind)
            seconds = time.perf_counter() - start
            logits, states = differences(root / "draft.gguf", features, tokens, steps)
            n_failed += not max(logits, states) <= BOUNDS[kind]
            print(f"| {kind} | {logits:.2g} | {states:.2g} | {BOUNDS[kind]:g} | {seconds:.0f} |", flush=True)
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
