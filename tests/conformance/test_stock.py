# SPDX-License-Identifier: MIT
"""llama.cpp itself, in a child process, gets from our `dflash` files what PyTorch gets from the checkpoint;
it loads our `eagle3` ones, and refuses `dflash_ex` and `eagle31`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglecpp.convert import convert_checkpoint
from helpers.random_block import MASK_TOKEN, BlockShape
from helpers.random_drafter import DraftShape
from helpers.reference.block import BlockDrafter
from helpers.script import run_script
from helpers.tiny import TinyTarget

N_CONTEXT, ANCHOR = 9, 7
RUN = """
import ctypes, sys
import llama_cpp.llama_cpp as lib
import numpy as np

model_path, folder, mask, causal = sys.argv[1:]
params = lib.llama_model_default_params()
params.use_extra_bufts = False  # repacked weights would use AMX, which some virtual machines only promise
model = lib.llama_model_load_from_file(model_path.encode(), params)
if not model:
    sys.exit("refused")
params = lib.llama_context_default_params()
params.n_ctx = params.n_batch = params.n_ubatch = 64
params.type_k = params.type_v = params.flash_attn_type = 0
context = lib.llama_init_from_model(model, params)
lib.llama_set_causal_attn(context, causal == "True")
features = np.load(folder + "/features.npy")


def process(n_rows, position, features=None, tokens=()):
    batch = lib.llama_batch_init(n_rows, 0 if features is None else features.shape[1], 1)
    batch.n_tokens = n_rows
    for i in range(n_rows):
        batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = position + i, 1, 0, 1
        if features is None:
            batch.token[i] = tokens[i]
    if features is not None:
        ctypes.memmove(batch.embd, features.ctypes.data, features.nbytes)
    assert lib.llama_decode(context, batch) == 0


process(len(features), 0, features)
tokens = [7, *[int(mask)] * 4]
process(5, len(features), tokens=tokens)
n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
np.save(folder + "/logits.npy", np.ctypeslib.as_array(lib.llama_get_logits(context), (5, n_vocab)))
"""
LOAD = """
import sys
import llama_cpp.llama_cpp as lib

params = lib.llama_model_default_params()
params.use_extra_bufts = False
model = lib.llama_model_load_from_file(sys.argv[1].encode(), params)
if not model:
    sys.exit("refused")
vocab = lib.llama_model_get_vocab(model)
print(lib.llama_model_n_embd(model), lib.llama_model_n_layer(model), lib.llama_vocab_n_tokens(vocab))
"""
DFLASH, DSPARK = BlockShape(own_tables=True), BlockShape("dspark")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SHAPES = {
    "DFlash": DFLASH,
    "window": replace(DFLASH, window=6),
    "window, whole block": replace(DFLASH, window=6, causal=False),
    "causal": replace(DFLASH, causal=True),
    "sinks": replace(DFLASH, sinks=True, extra={"attention_value_scale": 0.7}),
    "yarn": replace(DFLASH, rope=YARN),
    "llama3": replace(DFLASH, rope=LLAMA3),
    "scaled embeddings": replace(DFLASH, extra={"input_embedding_scale": 2.0}),
    "DSpark": DSPARK,
    "draft vocabulary": replace(DSPARK, n_draft_vocab=160),
    "DSpark in place": replace(DSPARK, extra={"sample_from_anchor": False}),
    "Gemma 4": replace(DSPARK, gemma="keys", extra={"final_logit_softcapping": None}),
    "DFlash2": BlockShape("dflash2", own_tables=True),
}


def expected(checkpoint: Path, features: torch.Tensor) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Logits `[slots, V]` of the greedy chain, and the slots."""
    drafter = BlockDrafter.load(checkpoint)
    drafter.commit(features)
    done, token = drafter.run(ANCHOR), ANCHOR
    rows = torch.full((5, len(drafter.embedding)), float("-inf"))  # type: ignore[arg-type]
    for slot in drafter.slots():
        logits = drafter.conditional(done, slot, token)
        rows[slot, drafter.target_ids] = logits
        token = int(drafter.target_ids[logits.argmax()])
    return rows.numpy(), list(drafter.slots())


@pytest.mark.parametrize("name", SHAPES)
def test_llama_cpp_computes_what_the_reference_does(name: str, target: TinyTarget, tmp_path: Path) -> None:
    shape = SHAPES[name]
    path = shape.gguf(tmp_path, target.gguf)
    features = torch.from_numpy(np.random.default_rng(3).normal(size=(3, N_CONTEXT, 64)).astype(np.float32))
    np.save(tmp_path / "features.npy", torch.cat(list(features), dim=-1).numpy())
    causal = shape.causal if shape.causal is not None else shape.window > 0
    child = run_script(RUN, path, tmp_path, MASK_TOKEN, causal)
    assert child.returncode == 0, child.stderr[-2000:]
    rows, slots = expected(tmp_path / "checkpoint", features)
    found = np.load(tmp_path / "logits.npy")[slots]
    known = np.isfinite(rows[slots])
    tolerance = 2e-3 if shape.gemma else 5e-5  # ggml's gelu reads a table
    np.testing.assert_allclose(found[known], rows[slots][known], atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "type"),
    [
        (DraftShape(), "Q8_0"),
        (DraftShape(norm_before_fc=True, norm_before_residual=True), "F16"),
        (DraftShape(n_draft_vocab=367, own_head=False, own_embedding=False), "F16"),
        (DraftShape(rope={"rope_type": "linear", "factor": 2.0}), "BF16"),
        (DraftShape(rope=YARN), "F16"),
    ],
    ids=["Q8_0", "norms", "shared", "linear", "yarn"],
)
def test_llama_cpp_loads_plain_eagle3(
    shape: DraftShape, type: str, target: TinyTarget, tmp_path: Path
) -> None:
    report = convert_checkpoint(shape.write(tmp_path / "in"), target.gguf, tmp_path / "draft.gguf", type)
    child = run_script(LOAD, report.out)
    assert report.spec.architecture == "eagle3" and child.returncode == 0, child.stderr[-2000:]
    assert child.stdout.split() == ["64", "1", "367"]


@pytest.mark.parametrize(
    ("shape", "arch"),
    [
        (replace(DSPARK, rank=0, confidence=False), "dflash_ex"),
        (replace(DFLASH, window=6, full_layers=(1,)), "dflash_ex"),
        (replace(DSPARK, gemma="keys"), "dflash_ex"),
        (DraftShape(fc_norm=True), "eagle31"),
    ],
    ids=["anchor first", "layers that differ", "soft cap", "eagle31"],
)
def test_llama_cpp_refuses_what_it_would_run_wrong(
    shape: BlockShape | DraftShape, arch: str, target: TinyTarget, tmp_path: Path
) -> None:
    """Whatever has this architecture, see tests/unit/convert."""
    out = convert_checkpoint(shape.write(tmp_path / "in"), target.gguf, tmp_path / "draft.gguf").out
    child = run_script(LOAD, out)
    assert child.returncode == 1, (child.returncode, child.stderr[-2000:])
    assert f"unknown model architecture: '{arch}'" in child.stderr
