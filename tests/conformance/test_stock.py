# SPDX-License-Identifier: MIT
"""Tests our files with llama.cpp itself, in a child process. From our `dflash` files llama.cpp must compute
the same values as PyTorch from the checkpoint, including confidences and scores. llama.cpp must load our
`eagle3` files, and refuse our `dflash_ex` and `eagle31` files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from eaglecpp.convert import convert_checkpoint
from eaglecpp.lowlevel import Drafter
from helpers.native import engine_options
from helpers.random_block import MASK_TOKEN, BlockShape
from helpers.random_drafter import LLAMA3, DraftShape
from helpers.reference.block import BlockDrafter
from helpers.script import run_script
from helpers.tiny import TinyTarget
from helpers.tiny_split import Tensors, rewrite

FIXTURES = Path(__file__).parents[1] / "fixtures"
DEMO = FIXTURES.parents[1] / "examples" / "demo_model" / "pair" / "demo-target.gguf"
N_CONTEXT, ANCHOR = 9, 7
HEAD = """
import ctypes, sys
import llama_cpp.llama_cpp as lib
import numpy as np


def load(path):
    params = lib.llama_model_default_params()
    params.use_extra_bufts = False  # repacked weights would use AMX, which some virtual machines only promise
    return lib.llama_model_load_from_file(path.encode(), params) or sys.exit("refused")


"""
RUN = """
model_path, folder, mask, n_block, causal, target = sys.argv[1:]
model = load(model_path)
params = lib.llama_context_default_params()
params.n_ctx = params.n_batch = params.n_ubatch = 64
params.type_k = params.type_v = params.flash_attn_type = 0
if target:
    params.ctx_other = lib.llama_init_from_model(load(target), params)  # whose tables are used
context = lib.llama_init_from_model(model, params)
lib.llama_set_causal_attn(context, causal == "True")
# what its server asks for, too: a row of estimates or of scores for each token
ask = lib._lib["_Z26llama_set_embeddings_nextnP13llama_contextbb"]
ask.argtypes = ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool
ask(context, True, False)
get = lib._lib["_Z26llama_get_embeddings_nextnP13llama_context"]
get.argtypes, get.restype = (ctypes.c_void_p,), ctypes.POINTER(ctypes.c_float)
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
tokens = [7, *[int(mask)] * (int(n_block) - 1)]
process(len(tokens), len(features), tokens=tokens)
sizes = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)), lib.llama_model_n_embd(model)
for name, rows, size in zip(("logits", "judged"), (lib.llama_get_logits(context), get(context)), sizes):
    np.save(f"{folder}/{name}.npy", np.ctypeslib.as_array(rows, (len(tokens), size)))
"""
LOAD = """
model = load(sys.argv[1])
vocab = lib.llama_model_get_vocab(model)
print(lib.llama_model_n_embd(model), lib.llama_model_n_layer(model), lib.llama_vocab_n_tokens(vocab))
"""
DFLASH, DSPARK = BlockShape(own_tables=True), BlockShape("dspark")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
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


def random_features(width: int) -> np.ndarray[Any, Any]:
    """Returns random features `[A, n_rows, H]`."""
    return np.random.default_rng(3).normal(size=(3, N_CONTEXT, width)).astype(np.float32)


def llama_cpp(
    path: Path, folder: Path, features: Any, mask: int, n_block: int, causal: bool = False, target: Any = ""
) -> list[np.ndarray[Any, Any]]:
    """Runs llama.cpp on a block after these features `[A, n_rows, H]`. Returns for each row of the block the
    logits `[V]`, and the values `[H]` that llama.cpp's server reads. For DSpark these values are the
    confidence, repeated. For DFlash2 they are the ids of the candidates `[K]`, and their scores `[K before,
    K]` (src/models/dflash.cpp has the Markov head and the selector).
    """
    np.save(folder / "features.npy", np.concatenate(list(features), axis=-1))
    child = run_script(HEAD + RUN, path, folder, mask, n_block, causal, target)
    assert child.returncode == 0, child.stderr[-2000:]
    return [np.load(folder / f"{name}.npy") for name in ("logits", "judged")]


def expected(checkpoint: Path, features: torch.Tensor) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Computes the logits `[slots, V]` of the greedy chain with PyTorch. Returns the logits, and the number
    of each slot.
    """
    drafter = BlockDrafter.load(checkpoint)
    drafter.commit(features)
    done = drafter.run(ANCHOR)
    rows = torch.full((5, len(drafter.embedding)), float("-inf"))  # type: ignore[arg-type]
    for slot, token in zip(drafter.slots(), [ANCHOR, *drafter.walk(done)], strict=False):
        rows[slot, drafter.target_ids] = drafter.conditional(done, slot, token)
    return rows.numpy(), list(drafter.slots())


@pytest.mark.parametrize("name", SHAPES)
def test_llama_cpp_computes_the_reference(name: str, target: TinyTarget, tmp_path: Path) -> None:
    shape = SHAPES[name]
    path = shape.gguf(tmp_path, target.gguf)
    features = random_features(64)
    causal = shape.causal if shape.causal is not None else shape.window > 0
    logits, _ = llama_cpp(path, tmp_path, features, MASK_TOKEN, 5, causal)
    rows, slots = expected(tmp_path / "checkpoint", torch.from_numpy(features))
    known = np.isfinite(rows[slots])
    tolerance = 2e-3 if shape.gemma else 5e-5  # ggml computes gelu from a table, which is less accurate
    np.testing.assert_allclose(logits[slots][known], rows[slots][known], atol=tolerance, rtol=1e-4)


def add_confidence(tensors: Tensors) -> None:
    """Adds a confidence head, which the trained drafter lacks."""
    tensors["conf_proj.weight"] = np.random.default_rng(5).normal(0, 0.1, (1, 384)).astype(np.float32)


def difference(path: Path, logits: np.ndarray[Any, Any], judged: np.ndarray[Any, Any]) -> float:
    """Returns the largest difference between llama.cpp's values and ours with ggml's kernels. For DSpark, the
    values are the logits of the confidence along the greedy chain. For DFlash2, the values are the
    log-probabilities of all pairs of candidates.
    """
    options = engine_options(n_ctx=64, draft_type_kv="f32", flash_attn="off", kernels="off")
    table = next(one for one in gguf.GGUFReader(DEMO).tensors if one.name == "token_embd.weight")
    drafter = Drafter(str(path), options, gguf.dequantize(table.data, table.tensor_type))

    def slots(previous: list[int]) -> Any:
        drafter.reset()
        return drafter.block(random_features(320), [0] * (N_CONTEXT - 1) + [ANCHOR], previous, 16)

    if "dspark" in path.name:
        shares = judged[:, 0].astype(np.float64)
        found = [confidence for (_, _, confidence), *_ in slots(logits[:-1].argmax(-1).tolist())]
        return float(np.abs(np.log(shares / (1 - shares)) - found).max())
    ids, scores, gaps = judged[1:, :16], torch.from_numpy(judged[1:, 16 : 16 + 256]).view(-1, 16, 16), []
    for before, rows in enumerate(scores.log_softmax(-1).transpose(0, 1)):
        for slot, tokens, row in zip(slots(ids[:-1, before].astype(int).tolist()), ids, rows, strict=True):
            theirs = np.stack([tokens, row], axis=-1)[tokens.argsort()]
            gaps.append(np.abs(theirs - [one[:2] for one in sorted(slot)]).max())
    return float(max(gaps))


def swap_rows(tensors: Tensors) -> None:
    tensors["selector_hidden.weight"][[0, 1]] = tensors["selector_hidden.weight"][[1, 0]]


def change_one(tensors: Tensors) -> None:
    tensors["conf_proj.weight"][0, 7] += 0.1


CHANGES = {"dspark": (add_confidence, change_one), "dflash2": (lambda tensors: None, swap_rows)}


@pytest.mark.parametrize("name", CHANGES)
def test_llama_cpp_judges_drafts_as_we_do(name: str, tmp_path: Path) -> None:
    """Compares llama.cpp and PyTorch on the trained drafters, with the target's embeddings. The comparison
    must detect a single changed weight, or two swapped rows.
    """
    added, mistake = CHANGES[name]
    path = rewrite(FIXTURES / f"demo-{name}.gguf", tmp_path / f"{name}.gguf", added)
    theirs = llama_cpp(path, tmp_path, random_features(320), 1, 8, target=DEMO)
    assert difference(path, *theirs) < 1e-5
    assert difference(rewrite(path, tmp_path / f"{name}-2.gguf", mistake), *theirs) > 1e-2


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
def test_llama_cpp_loads_our_eagle3(shape: DraftShape, type: str, target: TinyTarget, tmp_path: Path) -> None:
    report = convert_checkpoint(shape.write(tmp_path / "in"), target.gguf, tmp_path / "draft.gguf", type)
    child = run_script(HEAD + LOAD, report.out)
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
def test_llama_cpp_refuses_files_that_it_would_run_wrong(
    shape: BlockShape | DraftShape, arch: str, target: TinyTarget, tmp_path: Path
) -> None:
    """Checks that llama.cpp refuses any file with one of our architecture names. tests/unit/convert checks
    which files get our names.
    """
    out = convert_checkpoint(shape.write(tmp_path / "in"), target.gguf, tmp_path / "draft.gguf").out
    child = run_script(HEAD + LOAD, out)
    assert child.returncode == 1, (child.returncode, child.stderr[-2000:])
    assert f"unknown model architecture: '{arch}'" in child.stderr
