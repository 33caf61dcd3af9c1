# SPDX-License-Identifier: MIT
"""Writes a trained drafter as a Hugging Face checkpoint and a GGUF, and checks that the engine computes the
same.

The checkpoint has the names and keys that vLLM, SGLang and TorchSpec read. Layer ids are written in both
conventions: as boundary ids at the top level (vLLM), and as ids of the block before the boundary in
`eagle_config` (SGLang, TorchSpec). The vocabulary maps are written unless the draft vocabulary is the whole
vocabulary. A head that is shared with the target is also written, for readers that need it. An EAGLE-1
checkpoint has neither ids nor maps nor a head, as in SafeAILab's files. The engine then loads the GGUF, and
three chained steps are compared with this module's own arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from eaglecpp.convert import BlockSpec, ConvertReport, DraftSpec, TypePlan, convert_checkpoint, open_drafter
from eaglecpp.errors import TrainError
from eaglecpp.files import replace_bytes, replaced
from eaglecpp.log import drain
from eaglecpp.lowlevel import Drafter, EngineOptions
from eaglecpp.train.data.vocab import DraftVocabulary
from eaglecpp.train.fit.batch import Batch, make_batch
from eaglecpp.train.fit.block import model_for
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.stored import StoredWeights
from eaglecpp.train.fit.weights import State, from_checkpoint, to_checkpoint
from eaglecpp.train.samples import Sample

_N_STEPS = 3
_N_TOKENS = 48
_EXACT_ERROR = 1e-3
"""Allowed difference of the logits for an F32 file, relative to their spread."""
_F16_ERROR, _MOST_ERROR = 5e-3, 0.3
"""Allowed differences for an F16 file with any features, and for any type that is still useful."""
_QUANTISED = 8.0
"""Allowed difference in times of the largest rounding error of a stored matrix: there are seven matrices in a
row, and the engine also rounds their inputs.
"""


def hf_config(spec: DraftSpec, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of `config.json`. facts: the record of the training, which is stored under the key
    `eaglecpp`.
    """
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM" if spec.fuses_embedding else "LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_norm_eps,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_length,
        "rope_theta": spec.rope.theta,
        "rope_scaling": _rope_scaling(spec),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eaglecpp": dict(facts),
    }
    if spec.fuses_embedding:
        return config | {"bias": False}
    if spec.block is not None:
        return config | _block_config(spec, spec.block)
    switches = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
    own = {name: getattr(spec, name) for name in ("target_hidden_size", "draft_vocab_size", *switches)}
    layers, before = list(spec.aux_layers), [k - 1 for k in spec.aux_layers]
    return config | own | {
        "attention_bias": False,
        "mlp_bias": False,
        "num_aux_hidden_states": spec.n_aux,
        "eagle_aux_hidden_state_layer_ids": layers,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": before},
    }  # fmt: skip


def _block_config(spec: DraftSpec, block: BlockSpec) -> dict[str, Any]:
    """Returns the keys of a block drafter in DeepSpec's form (DFlash has rank 0), or in z-lab's form if rows
    predict their own position. A layer id names the block before the feature.
    """
    heads: dict[str, Any] = {
        "markov_rank": block.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": block.confidence,
        "confidence_head_with_markov": block.markov_rank > 0,
    }
    if block.selector and block.conv:
        keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        # vLLM reads these keys.
        heads = {"dflash_config": dict(zip(keys, (*block.conv, *block.selector), strict=True))}
    in_place = "DFlash2DraftModel" if block.selector else "DFlashDraftModel"
    return heads | {
        "architectures": ["Qwen3DSparkModel" if block.anchor_first else in_place],
        "sample_from_anchor": block.anchor_first,
        "model_type": "qwen3",
        "attention_bias": False,
        "num_target_layers": spec.target_block_count,
        "target_layer_ids": [k - 1 for k in spec.aux_layers],
        "layer_types": ["full_attention"] * spec.n_layers,
        "draft_vocab_size": spec.draft_vocab_size,
        "block_size": block.size,
        "mask_token_id": block.mask_token,
        "is_causal": block.causal[0],
    }


def _rope_scaling(spec: DraftSpec) -> dict[str, Any] | None:
    rope = spec.rope
    if rope.scaling == "linear":
        return {"rope_type": "linear", "factor": rope.factor}
    if rope.scaling == "llama3":
        return {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_context,
        }
    return None


def write_checkpoint(
    folder: Path, model: DraftModel, vocab: DraftVocabulary, facts: Mapping[str, Any], *, own_embedding: bool
) -> None:
    """Writes `config.json` and `model.safetensors`, with weights in bf16, each atomically.

    own_embedding: also write the drafter's embedding, because it differs from the target's
    """
    tensors = to_checkpoint({name: p.detach().cpu() for name, p in model.named_parameters()}, model.spec)
    if own_embedding:
        tensors["embed_tokens.weight"] = model.embedding.cpu()
    stored = {name: t.to(torch.bfloat16).contiguous() for name, t in tensors.items()}
    if len(vocab.ids) < vocab.n_vocab:  # vLLM rejects maps of a whole vocabulary
        stored |= {"d2t": torch.from_numpy(vocab.d2t), "t2d": torch.from_numpy(vocab.t2d)}
    text = json.dumps(hf_config(model.spec, facts), indent=2) + "\n"
    with replaced(folder / "model.safetensors") as path:
        save_file(stored, path, metadata={"format": "pt"})
    replace_bytes(folder / "config.json", text.encode("utf-8"))


def export_gguf(folder: Path, target: Path, kind: str, *, share_head: bool) -> ConvertReport:
    """Converts the checkpoint in the folder to `drafter-<kind>.gguf` in the same folder. Raises
    ConvertError.
    """
    out = folder / f"drafter-{kind}.gguf"
    return convert_checkpoint(folder, target=target, out=out, type=kind, share_head=share_head)


def check_engine(
    report: ConvertReport,
    folder: Path,
    target: Path,
    model: DraftModel,
    vocab: DraftVocabulary,
    sample: Sample,
    rounded: TypePlan | None = None,
) -> float:
    """Compares the engine's logits for the GGUF with this module's logits for the checkpoint, for three
    chained steps on one sample.

    rounded: quantisation that was used in training, if any; this module then rounds the weights as well
    Returns the root mean square difference of the logits, relative to their spread. If the difference is
    larger than the type's own rounding explains, a copy in F16 shows whether the arithmetic or the type is
    the cause: features with values a hundred times their mean cost a quantised product several percent.
    Raises TrainError for wrong arithmetic, and for a type that makes the drafter useless.
    """
    n_tokens = min(len(sample.tokens), _N_TOKENS)
    if n_tokens < _N_STEPS + 3:
        return 0.0
    block = model.spec.block
    n = _N_STEPS if block is None else min(_N_STEPS, block.n_drafts)
    labels = sample.label_ids[:n_tokens], sample.label_logp[:n_tokens]
    short = Sample(sample.tokens[:n_tokens], sample.turns[:n_tokens], sample.features[:, :n_tokens], *labels)
    batch = make_batch([short], vocab.draft_ids, n, torch.device("cpu"))
    state = from_checkpoint(open_drafter(folder, target))
    # The chain starts at the last row after which n drafts fit into the sample.
    expected = _here(state, model, batch, n_tokens - 2 - n, rounded)
    head = model.head.detach().float().cpu().numpy() if model.share_head else None
    ids = vocab.draft_ids if block else None
    embedding = model.embedding.float().cpu().numpy()

    def difference(gguf: Path) -> float:
        logits = _engine(gguf, embedding, head, short, ids, n)
        is_scored = np.isfinite(logits)  # DFlash2 gives scores only to its candidates
        first, second = (_among(rows, is_scored) for rows in (logits, expected))
        return float(np.sqrt(np.square(first - second).mean()) / second.std())

    error = difference(report.out)
    allowed = _EXACT_ERROR + _QUANTISED * max((t.rel_rms_error for t in report.tensors), default=0.0)
    if not error <= allowed and error <= _MOST_ERROR and report.type not in ("F32", "F16"):
        with TemporaryDirectory(dir=folder) as scratch:
            exact = Path(scratch, "drafter-F16.gguf")
            convert_checkpoint(folder, target=target, out=exact, type="F16", share_head=model.share_head)
            if difference(exact) <= _F16_ERROR:
                return error
    if not error <= allowed:
        raise TrainError(
            f"{report.out}: the engine's logits differ from the trained drafter's by {error:.3g} of their "
            f"spread, expected at most {allowed:.3g} for {report.type}. The checkpoint {folder} is written, "
            "but the GGUF does not match it; please report this"
        )
    return error


def _among(rows: NDArray[np.float32], chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Returns the log-probabilities of the chosen tokens of each row, renormalised over the chosen tokens."""
    masked = np.where(chosen, rows, -np.inf)
    return (masked - np.logaddexp.reduce(masked, axis=1, keepdims=True))[chosen]


@torch.no_grad()
def _here(
    state: State, model: DraftModel, batch: Batch, row: int, rounded: TypePlan | None
) -> NDArray[np.float32]:
    """Computes the fp32 logits [n_steps, n_draft_vocab] of the chain that starts at a row, in PyTorch from
    the checkpoint.
    """
    shares = model.share_head
    exact = model_for(model.spec)(model.spec, model.embedding.cpu(), share_head=shares, dtype=torch.float32)
    exact.load_state_dict(state, strict=False)
    if shares:  # for these drafters, the engine uses the target's head
        exact.head.copy_(model.head.cpu())
    stored = None if rounded is None else StoredWeights(exact, rounded)
    with nullcontext() if stored is None else stored.lent():
        return np.stack([step[row].log_softmax(-1).numpy() for step in exact.logits(batch)])


def _engine(
    gguf: Path,
    embedding: NDArray[np.float32],
    head: NDArray[np.float32] | None,
    sample: Sample,
    draft_ids: NDArray[np.int64] | None,
    n: int,
) -> NDArray[np.float32]:
    """Computes the logits of the chain that starts at a row, with the engine. draft_ids: draft id of each
    token, for a block drafter.
    """
    row, tokens = len(sample.tokens) - 2 - n, sample.tokens.tolist()
    options = EngineOptions()
    options.draft_type_kv, options.draft_device, options.n_threads = "f32", "cpu", torch.get_num_threads()
    drafter = Drafter(str(gguf), options, embedding, head)
    try:
        features = np.ascontiguousarray(sample.features[:, : row + 1])
        if draft_ids is not None:
            behind = tokens[row + 2 : row + 1 + n]
            slots = drafter.block(features, tokens[1 : row + 2], behind, int(draft_ids.max()) + 1)
            rows = np.full((n, int(draft_ids.max()) + 1), -np.inf, np.float32)
            for one, slot in zip(rows, slots, strict=True):
                ids, values, _ = zip(*slot, strict=True)
                one[draft_ids[list(ids)]] = values
            return rows
        logits, state = drafter.commit(features, tokens[1 : row + 2])
        steps = [np.asarray(logits)]
        for k in range(1, n):
            rows, states = drafter.extend(state[None], [tokens[row + 1 + k]], [k - 2])
            steps.append(np.asarray(rows[0]))
            state = states[0]
    finally:
        drain()
    return np.stack([one - np.logaddexp.reduce(one) for one in steps])
