# SPDX-License-Identifier: MIT
"""Runs what `eaglecpp train` writes in vLLM's own classes, on the CPU, and compares it with the engine.

    python tests/vllm_classes.py FOLDER [--family dspark]... [--drafters FOLDER]

FOLDER has vLLM's Python files: `pip download --no-deps vllm==0.33.0` and `unzip 'vllm-*.whl' 'vllm/*.py'`.
vLLM is not installed. Its files of drafters run as they are; what they import is replaced: layers for several
GPUs by plain ones, kernels by PyTorch, the paged cache by a list. Each family is trained for a step on the
demo target. Three chained steps, or all slots of a block, are compared after several lengths of context.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from eaglecpp.convert import read_gguf
from eaglecpp.train.capture.features import TargetSource
from eaglecpp.train.fit.export import _among, _engine
from eaglecpp.train.fit.weights import target_embedding, target_head
from eaglecpp.train.options import TrainOptions
from eaglecpp.train.run import train
from eaglecpp.train.samples import Sample, TrainText

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "examples" / "demo_model" / "pair" / "demo-target.gguf"
FAMILIES = {"eagle31": 2048, "eagle3": None, "dspark": 2048, "dflash": 2048, "dflash2": None}
"""And their draft vocabularies; None = the target's."""
CLASSES = {
    "LlamaForCausalLMEagle3": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "Qwen3DSparkModel": ("qwen3_dspark", "Qwen3DSparkForCausalLM"),
    "DFlashDraftModel": ("qwen3_dflash", "DFlashQwen3ForCausalLM"),
    "DFlash2DraftModel": ("qwen3_dflash2", "DFlash2Qwen3ForCausalLM"),
}
"""As vLLM's registry has them."""
REAL = {f"vllm.model_executor.models.{name}" for name in ("llama", *(m for m, _ in CLASSES.values()))}
LENGTHS = (6, 17, 40)
LIMIT, N_STEPS = 2e-3, 3


class Linear(nn.Module):
    def __init__(self, n_in: int, n_out: int, bias: bool = False, return_bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None
        self.return_bias, self.input_size, self.quant_method = return_bias, n_in, Unquantized()

    def forward(self, x: Tensor) -> Any:
        out = F.linear(x, self.weight, self.bias)
        return (out, None) if self.return_bias else out


class Unquantized:
    pass


def replicated(
    input_size: int, output_size: int, bias: bool = True, return_bias: bool = True, **_: Any
) -> Linear:
    return Linear(input_size, output_size, bias, return_bias)


def qkv(
    hidden_size: int,
    head_size: int,
    total_num_heads: int,
    total_num_kv_heads: int,
    bias: bool = False,
    **_: Any,
) -> Linear:
    return Linear(hidden_size, (total_num_heads + 2 * total_num_kv_heads) * head_size, bias)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        x = x if residual is None else x + residual
        out = F.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)
        return out if residual is None else (out, x)


def rms_norm_into(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    if weight.ndim > 1:  # one for each layer, the first axis
        weight = weight.view(len(weight), *[1] * (x.ndim - 2), -1)
    out.copy_(F.rms_norm(x, x.shape[-1:], None, eps) * weight)


class Rope:
    is_neox_style = True

    def __init__(self, head_size: int, rope_parameters: dict[str, Any], max_position: int, **_: Any) -> None:
        assert rope_parameters["rope_type"] == "default", rope_parameters
        freq = rope_parameters["rope_theta"] ** -(torch.arange(0, head_size, 2) / head_size)
        angle = torch.arange(max_position)[:, None] * freq
        self.head_size, self.cos_sin_cache = head_size, torch.cat([angle.cos(), angle.sin()], -1)

    def __call__(self, positions: Tensor, *each: Tensor) -> tuple[Tensor, ...]:
        return tuple(turned(positions, x, self.head_size, self.cos_sin_cache) for x in each)


def turned(positions: Tensor, x: Tensor, head_size: int, cache: Tensor) -> Tensor:
    heads = x.view(len(x), -1, head_size)
    cos, sin = cache[positions][:, None].chunk(2, -1)
    a, b = heads.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).view(x.shape)


def turn_in_place(
    positions: Tensor, x: Tensor, _: None, head_size: int, cache: Tensor, is_neox: bool
) -> None:
    assert is_neox
    x.copy_(turned(positions, x, head_size, cache))


class Attention(nn.Module):
    """With a list of keys and values for a cache. A block's rows see all of it and each other."""

    kv_cache = None

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int, **_: Any) -> None:
        super().__init__()
        self.sizes, self.scale, self.is_block = (num_heads, num_kv_heads, head_size), scale, False
        self.rows: list[tuple[Tensor, Tensor]] = []
        self.impl = SimpleNamespace(do_kv_cache_update=lambda _, k, v, *__: self.rows.append((k, v)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n_heads, n_kv, size = self.sizes
        rows = [*self.rows, (k.view(-1, n_kv, size), v.view(-1, n_kv, size))]
        if not self.is_block:
            self.rows = rows
        keys, values = (
            torch.cat(part).transpose(0, 1).repeat_interleave(n_heads // n_kv, 0)
            for part in zip(*rows, strict=True)
        )
        scores = q.view(len(q), n_heads, size).transpose(0, 1) @ keys.transpose(1, 2) * self.scale
        if not self.is_block:
            n_before = keys.shape[1] - len(q)
            future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + n_before)
            scores = scores.masked_fill(future, -torch.inf)
        return (scores.softmax(-1) @ values).transpose(0, 1).reshape(len(q), -1)


class Table(nn.Module):
    def __init__(self, n: int, size: int, **_: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n, size))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


class LogitsProcessor:
    def __init__(self, n: int, scale: float = 1.0, soft_cap: float | None = None) -> None:
        assert soft_cap is None
        self.scale = scale

    def __call__(self, head: Table, states: Tensor) -> Tensor:
        return F.linear(states, head.weight) * self.scale

    def get_top_k_tokens(self, head: Table, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, ids = self(head, states).topk(k)
        return ids, values


class Loader:
    """vLLM's, as far as these checkpoints need it: every weight has to find its place."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def load_weights(self, weights: Any, mapper: Any = None) -> None:
        state, joined = dict(self.module.named_parameters()), {}
        renamed = self.module.model.hf_to_vllm_mapper.substrings
        for name, value in weights:
            for old, new in renamed.items():
                name = name.replace(old, new)
            for whole, parts in {
                "qkv_proj": ("q_proj", "k_proj", "v_proj"),
                "gate_up_proj": ("gate_proj", "up_proj"),
            }.items():
                for part in parts:
                    if f".{part}." in name:
                        joined.setdefault(name.replace(part, whole), {})[parts.index(part)] = value
                        break
                else:
                    continue
                break
            else:
                joined[name] = {0: value}
        for name, each in joined.items():
            state[name].data.copy_(torch.cat([each[i] for i in sorted(each)]))


class Mapper:
    """vLLM's WeightsMapper: the names that the model class itself changes."""

    def __init__(self, orig_to_new_substr: dict[str, Any] | None = None, **_: Any) -> None:
        self.substrings = {old: new for old, new in (orig_to_new_substr or {}).items() if new}


class Anything:
    """Stands for what is imported and not used, or only named."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...

    def __class_getitem__(cls, _: Any) -> type:
        return cls


def unchanged(*args: Any, **_: Any) -> Any:
    return args[0] if args and callable(args[0]) else unchanged


def row_parallel(input_size: int, output_size: int, bias: bool = False, **_: Any) -> Linear:
    return Linear(input_size, output_size, bias)


GIVEN: dict[str, Any] = {
    "QKVParallelLinear": qkv, "ReplicatedLinear": replicated, "RowParallelLinear": row_parallel,
    "MergedColumnParallelLinear": lambda input_size, output_sizes, **_: Linear(input_size, sum(output_sizes)),
    "RMSNorm": RMSNorm, "Attention": Attention, "LogitsProcessor": LogitsProcessor,
    "AutoWeightsLoader": Loader, "ParallelLMHead": Table, "VocabParallelEmbedding": Table,
    "UnquantizedLinearMethod": Unquantized,
    "_custom_ops": SimpleNamespace(rms_norm=rms_norm_into, rotary_embedding=turn_in_place),
    "get_rope": lambda size, max_position, rope_parameters, **_: Rope(size, rope_parameters, max_position),
    "SiluAndMul": lambda: lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "maybe_fused_act_quant": lambda act, x, _: act(x), "support_torch_compile": unchanged,
    "triton": SimpleNamespace(jit=unchanged, cdiv=None), "get_tensor_model_parallel_world_size": lambda: 1,
    "current_platform": SimpleNamespace(is_rocm=lambda: False), "get_draft_quant_config": lambda _: None,
    "maybe_prefix": lambda prefix, name: f"{prefix}.{name}" if prefix else name,
    "extract_layer_index": lambda prefix: int(prefix.split("layers.")[1].split(".")[0]),
    "AttentionType": SimpleNamespace(DECODER="decoder", ENCODER_ONLY="encoder"),
    "get_hf_file_bytes": lambda *_: None, "process_eagle_weight": lambda *_: None,
}  # fmt: skip


def mlp(**sizes: Any) -> Any:
    """vLLM's Qwen2MLP computes what its LlamaMLP does."""
    return importlib.import_module("vllm.model_executor.models.llama").LlamaMLP(**sizes)


GIVEN |= {
    "WeightsMapper": Mapper,
    "tl": Anything(),
    "Qwen2MLP": mlp,
    "Qwen3ForCausalLM": type("Qwen3ForCausalLM", (nn.Module,), {}),
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """vLLM's modules: those of drafters from its files, all others made up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ("vllm", "transformers", "regex"):
            return None
        if name in REAL:
            path = self.folder / f"{name.replace('.', '/')}.py"
            return importlib.util.spec_from_file_location(name, path)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: GIVEN.get(name) or type(name, (Anything,), {})  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def vllm_model(folder: Path, n_layers: int, embedding: Tensor, head: Tensor) -> tuple[Any, SimpleNamespace]:
    """The drafter in the class that vLLM takes for it, and its config."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # as transformers reads it
    rope = {"rope_type": "default", "rope_theta": values["rope_theta"]}
    config = SimpleNamespace(**values, rope_parameters=rope)
    module, name = CLASSES[values["architectures"][0]]
    speculative = SimpleNamespace(
        draft_model_config=SimpleNamespace(hf_config=config, model=str(folder), revision=None),
        parallel_drafting=False, num_speculative_tokens=values.get("block_size", 1) - 1,
    )  # fmt: skip
    target = SimpleNamespace(
        hf_config=config, dtype=torch.float32, get_total_num_hidden_layers=lambda: n_layers,
        get_vocab_size=lambda: len(embedding),
    )  # fmt: skip
    everything = SimpleNamespace(
        speculative_config=speculative, model_config=target, cache_config=None, quant_config=None,
        use_v2_model_runner=True,
    )  # fmt: skip
    GIVEN["get_current_vllm_config"] = lambda: everything
    # vLLM's get_eagle3_aux_layers_from_config
    ids = getattr(config, "eagle_aux_hidden_state_layer_ids", None) or [
        i + 1 for i in config.target_layer_ids
    ]
    GIVEN["get_eagle3_aux_layers_from_config"] = lambda _: ids
    model = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name)(
        vllm_config=everything
    )
    weights = {
        name: w.float() if w.is_floating_point() else w
        for name, w in load_file(folder / "model.safetensors").items()
    }
    model.model.embed_tokens.weight.data.copy_(embedding)  # what the drafter lacks is the target's
    if "lm_head.weight" not in weights:
        model.lm_head.weight.data.copy_(head)
    model.load_weights(weights.items())
    config.aux_layers = ids
    return model, config


@torch.no_grad()
def theirs(model: Any, config: SimpleNamespace, sample: Sample, n_rows: int) -> Iterator[Tensor]:
    """Logits over the draft vocabulary of each step or slot, drafting behind `n_rows` rows of context."""
    tokens = torch.from_numpy(sample.tokens.astype(np.int64))
    features = torch.from_numpy(sample.features[:, :n_rows]).transpose(0, 1).flatten(1)
    state, positions = model.combine_hidden_states(features), torch.arange(n_rows)
    layers = [layer.self_attn.attn for layer in model.model.layers]
    for layer in layers:
        layer.rows, layer.is_block = [], hasattr(config, "block_size")
    if not layers[0].is_block:
        read = tokens[1 : n_rows + 1]
        for k in range(N_STEPS):
            out, fed = model(read, positions, state)
            yield F.linear(out[-1], model.lm_head.weight)
            read, state, positions = tokens[n_rows + 1 + k][None], fed[-1:], torch.tensor([n_rows + k])
        return
    assert not any(model.get_draft_attn_causal())
    model.precompute_and_store_context_kv(state, positions, torch.arange(n_rows))
    rows = torch.full((config.block_size,), config.mask_token_id)
    rows[0] = tokens[n_rows]
    states = model(rows, torch.arange(n_rows, n_rows + len(rows)))
    if not hasattr(model, "compute_candidates"):
        bias = model.markov_bias(model.markov_embed(tokens[n_rows : n_rows + len(rows)]))
        yield from model.compute_draft_logits(states) + bias
        return
    ids, unary = model.compute_candidates(states[1:])
    scores = model.model.candidate_selector(ids[None], unary[None], states[None, 1:], rows[:1])[0]
    before = 0
    for i, of_slot in enumerate(ids):
        yield torch.full((config.vocab_size,), -torch.inf).scatter(0, of_slot, scores[i, before])
        before = int(scores[i, before].argmax())
        sample.tokens[n_rows + 1 + i] = int(of_slot[before])  # which both walk along


class Quiet:
    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument(
        "--drafters", type=Path, help="keeps the drafters here, and takes those that are there"
    )
    args = parser.parse_args()
    sys.meta_path.insert(0, Finder(args.folder))
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        for family in args.family or FAMILIES:
            gaps = compared((args.drafters or Path(name)) / family, family)
            worst = max(worst, *gaps)
            print(f"{family}: {len(gaps)} positions, largest difference {max(gaps):.1e}", flush=True)
    sys.exit(worst > LIMIT)


def compared(out: Path, family: Any) -> list[float]:
    """The largest difference of a log-probability at each position."""
    options = TrainOptions(
        TARGET, out, data=(ROOT / "tests" / "helpers" / "reference",), family=family, steps=1, n_ctx=128,
        type="F32", draft_layers=2, draft_vocab=FAMILIES[family],
    )  # fmt: skip
    gguf = out / "drafter-F32.gguf"
    if not gguf.exists():
        train(options, Quiet())  # type: ignore[arg-type]
    file = read_gguf(TARGET)
    embedding, head = target_embedding(file), target_head(file)
    model, config = vllm_model(out, file.integer(f"{file.architecture}.block_count") or 0, embedding, head)
    tokens = np.random.default_rng(1).integers(300, 4000, 64).astype(np.int32)
    source = TargetSource(TARGET, [TrainText(tokens, np.ones(64, np.int16))], config.aux_layers)
    sample = source.sample(0)
    source.close()
    n = getattr(config, "block_size", N_STEPS) - (family == "dflash2")
    ids = np.full(len(embedding), -1)
    map_ = model.draft_id_to_target_id
    drafted = np.arange(len(model.lm_head.weight)) + (0 if map_ is None else map_.numpy())
    ids[drafted] = np.arange(len(drafted))
    shared = None if "output.weight" in read_gguf(gguf).tensors else head.numpy()
    if shared is not None:  # the checkpoint has it in bf16
        model.lm_head.weight.data.copy_(head)
    gaps = []
    for n_rows in LENGTHS:
        until = n_rows + 1 + n
        rest = sample.label_ids[:until], sample.label_logp[:until]
        cut = Sample(sample.tokens[:until], sample.turns[:until], sample.features[:, :until], *rest)
        expected = list(theirs(model, config, cut, n_rows))
        found = _engine(gguf, embedding.numpy(), shared, cut, ids if n > N_STEPS else None, n)
        for a, b in zip(found, expected, strict=True):
            both = np.isfinite(a) & np.isfinite(b.numpy())
            one, other = (_among(row[None], both[None]) for row in (a, b.numpy()))
            gaps.append(float(np.abs(one - other).max()))
    return gaps


if __name__ == "__main__":
    main()
