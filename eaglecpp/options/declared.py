# SPDX-License-Identifier: MIT
"""Every option of the engine, declared once: name, type, default, range, help.

Three frozen dataclasses check their own values: `ModelOptions` (loading the target), `DraftOptions` (the
drafter's device and limits) and `SamplingOptions` (one generation). The command line, Modelfile `PARAMETER`s
and the server read these declarations through `describe()`. No other module repeats defaults and ranges.
Names and defaults follow llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from eaglecpp.errors import InvalidTypeError, InvalidValueError
from eaglecpp.human import n_bytes_of, nearest
from eaglecpp.limits import check_texts
from eaglecpp.options.checked import Checked, declare, describe
from eaglecpp.options.strategy import Strategy

# Maximum number of sequence ids in llama.cpp. Conversations and the leaves of draft trees share these ids.
MAX_SEQUENCES = 256
MAX_THREADS = 512  # GGML_MAX_N_THREADS
HEAD = "mtp"  # drafter name that selects the target's own multi-token prediction head
# Drafter name that selects drafts from the text itself, without a drafter.
TEXT = "text"
_KV_TYPES = ("auto", "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


_sampling = partial(declare, untrusted=True)
"""Declares a sampling option, which an untrusted model may set too."""


@dataclass(frozen=True)
class ModelOptions(Checked):
    """Options for loading the target, and the size of its context."""

    GROUP: ClassVar[str] = "model"

    n_ctx: int = declare(
        0,
        "context length in tokens; 0 = the trained length, up to 4096; -1 = the trained length",
        low=-1,
        flags="-c --ctx-size --n-ctx",
        parameter="num_ctx",
        untrusted=32768,
    )
    n_batch: int = declare(
        2048, "prompt tokens per batch", low=1, flags="-b --batch-size", parameter="num_batch", untrusted=2048
    )
    n_ubatch: int = declare(512, "tokens per compute graph", low=1, flags="-ub --ubatch-size")
    n_threads: int = declare(
        0,
        "threads; 0 = one per physical core, fewer while other processes need the cores",
        low=0,
        high=MAX_THREADS,
        flags="-t --threads",
        parameter="num_thread",
    )
    n_threads_batch: int = declare(
        0,
        "threads for reading prompts; 0 = the same as for decoding",
        low=0,
        high=MAX_THREADS,
        flags="-tb --threads-batch",
    )
    n_gpu_layers: int = declare(
        -1,
        "layers on the GPU; -1 = all",
        low=-1,
        flags="-ngl --n-gpu-layers --gpu-layers",
        parameter="num_gpu",
        untrusted=True,
    )
    main_gpu: int = declare(0, "index of the main GPU", low=0, flags="-mg --main-gpu", parameter=True)
    split_mode: str = declare(
        "layer",
        "how to split the model over GPUs: layer = whole layers, row = rows of each matrix (only SYCL), "
        "tensor = parts of every layer (llama.cpp: experimental), none = only the main GPU",
        choices=("layer", "row", "tensor", "none"),
        flags="-sm --split-mode",
    )
    tensor_split: tuple[float, ...] = declare(
        (),
        "share of the model for each GPU, such as 3,1; empty = by free memory",
        kind="numbers",
        flags="-ts --tensor-split",
    )
    n_cpu_moe: int = declare(
        0,
        "number of layers, from the first, whose experts (MoE) stay in host memory; -1 = all layers",
        low=-1,
        flags="-ncmoe --n-cpu-moe",
    )
    override_tensor: tuple[str, ...] = declare(
        (),
        "PATTERN=BUFFER[,...]: put tensors whose names match a regular expression on CPU or a device "
        "(repeatable)",
        flags="-ot --override-tensor",
    )
    flash_attn: str = declare(
        "auto", "flash attention", choices=("auto", "on", "off"), flags="-fa --flash-attn", untrusted=True
    )
    type_k: str = declare(
        "auto",
        "type of the K cache; auto = f16, or f32 on the CPU without flash attention",
        choices=_KV_TYPES,
        flags="-ctk --cache-type-k",
        untrusted=True,
    )
    type_v: str = declare(
        "auto",
        "type of the V cache; auto = as for K",
        choices=_KV_TYPES,
        flags="-ctv --cache-type-v",
        untrusted=True,
    )
    use_mmap: bool = declare(True, "map the file instead of reading it", flags="--mmap", parameter=True)
    use_mlock: bool = declare(False, "keep the weights in RAM", flags="--mlock")
    offload_kqv: bool = declare(True, "keep the KV cache on the GPU", flags="--kv-offload")
    rope_freq_base: float = declare(0.0, "RoPE base frequency; 0 = from the file", low=0, untrusted=True)
    rope_freq_scale: float = declare(0.0, "RoPE frequency scale; 0 = from the file", low=0, untrusted=True)
    repack: str = declare(
        "auto",
        "repack CPU weights and use AMX; auto = on, but off if the CPU reports AMX and AMX fails",
        choices=("auto", "on", "off"),
    )
    kernels: str = declare(
        "auto",
        "eaglecpp's CPU kernels; auto = on with AVX2 or NEON and the right llama.cpp version",
        choices=("auto", "off"),
    )
    n_sequences: int = declare(
        1, "conversations that can be open at once", low=1, high=MAX_SEQUENCES, flags=""
    )
    separate_caches: bool = declare(
        False, "separate KV cache for each conversation: faster for many at once, but without trees", flags=""
    )
    lora: tuple[tuple[str, float], ...] = declare(
        (), "LoRA adapters, each with its scale (default 1)", kind="pairs", flags="--lora --lora-scaled"
    )
    mmproj: str = declare("", "GGUF of the projector for image input", flags="-mm --mmproj")
    rpc: tuple[str, ...] = declare(
        (),
        "use the devices of a llama.cpp rpc-server, host:port (repeatable); needs llama.cpp built with RPC",
    )
    prompt_cache: str = declare(
        "", "folder that keeps the KV cache of long prompts, so that they are not read again after a restart"
    )
    prompt_cache_bytes: str = declare(
        "8G", "maximum size of the cache, such as 512M; the least recently used files are deleted first"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            n_bytes_of(self.prompt_cache_bytes)
        except InvalidValueError as error:
            raise InvalidValueError(f"prompt_cache_bytes: {error}") from None


@dataclass(frozen=True)
class DraftOptions(Checked):
    """Options of drafting: the drafter's device, and limits of drafts."""

    GROUP: ClassVar[str] = "draft"

    n_draft_max: int = declare(
        0,
        "maximum draft nodes per round; 0 = as the strategy needs, at least 16, or 32 with --draft text",
        low=0,
        high=Strategy.MAX_NODES,
        flags="",
    )
    n_leaves_max: int = declare(
        0, "maximum tree leaves per round; 0 = as the strategy needs", low=0, high=MAX_SEQUENCES, flags=""
    )
    draft_device: str = declare(
        "auto",
        "device of the drafter: auto, cpu or a ggml device name",
        flags="--draft-device -devd --device-draft --spec-draft-device",
    )
    draft_type_kv: str = declare(
        "f16", "type of the drafter's KV cache", choices=("f16", "f32"), flags="--draft-cache-type"
    )
    draft_window: int = declare(
        0,
        "number of recent tokens that an EAGLE or block drafter attends to, at most the window in its file; "
        "0 = that window (beyond 1,024 tokens, `auto` also tries 256 and keeps the better value)",
        low=0,
    )
    text_drafts: str = declare(
        "auto",
        "draft from the text itself: auto = only with a drafter and strategy auto; on = also without a "
        "drafter. Tokens that a grammar or schema forces are drafted unless off",
        choices=("auto", "on", "off"),
    )
    learn: bool = declare(
        False,
        "record your conversations on this machine, so that `eaglecpp learn` can train the drafter on them",
    )
    exact: str = declare(
        "auto",
        "draft only in batches that give the same bits, and so the same text, as target-only decoding; "
        "auto = if that costs at most 5 %",
        choices=("auto", "on", "off"),
    )
    planner_cache: bool = declare(True, "remember the planner's measurements of this machine and drafter")


@dataclass(frozen=True)
class SamplingOptions(Checked):
    """Options of one generation: when it stops and how tokens are chosen. The drafter never changes the
    result.
    """

    GROUP: ClassVar[str] = "sampling"
    RANDOM_SEEDS: ClassVar[tuple[int | None, ...]] = (None, -1, 0xFFFFFFFF)

    max_tokens: int = _sampling(
        -1,
        "maximum tokens to generate; -1 = until the model stops or the context is full",
        low=-1,
        flags="-n --max-tokens --predict --n-predict",
        parameter="num_predict",
    )
    temperature: float = _sampling(
        0.8, "randomness; 0 = greedy", low=0, flags="--temp --temperature", parameter=True
    )
    seed: int | None = _sampling(
        None,
        "sampler seed, taken modulo 2^32; -1, 4294967295 or none = random",
        kind=int,
        low=-math.inf,
        high=math.inf,
        flags="-s --seed",
        parameter=True,
    )
    rng: str = _sampling(
        "coupled",
        "random numbers: coupled = shared with the drafter, which raises acceptance of sampled text; "
        "llama = llama.cpp's own",
        choices=("coupled", "llama"),
        untrusted=False,
    )
    stop: tuple[str, ...] = _sampling(
        (),
        "stop at this text or control token, which is removed from the answer (repeatable)",
        parameter=True,
    )
    top_k: int = _sampling(40, "sample from the k most likely tokens; 0 = off", low=0, parameter=True)
    top_p: float = _sampling(
        0.95,
        "sample from the most likely tokens whose probabilities add up to p; 1 = off",
        low=0,
        high=1,
        parameter=True,
    )
    min_p: float = _sampling(
        0.05,
        "drop tokens below this fraction of the highest probability; 0 = off",
        low=0,
        high=1,
        parameter=True,
    )
    typical_p: float = _sampling(
        1.0, "locally typical sampling; 1 = off", low=0, high=1, flags="--typical-p --typical", parameter=True
    )
    top_n_sigma: float = _sampling(
        -1.0, "keep logits within n sigma of the best; < 0 = off", flags="--top-n-sigma --top-nsigma"
    )
    xtc_probability: float = _sampling(0.0, "chance of dropping the top tokens; 0 = off", low=0, high=1)
    xtc_threshold: float = _sampling(
        0.1, "XTC drops tokens above this probability, except the last", low=0, high=1
    )
    min_keep: int = _sampling(
        0, "minimum number of tokens that truncating samplers keep", low=0, flags="", untrusted=False
    )
    infill: bool = _sampling(
        False,
        "llama.cpp's infill sampler: ends sooner, and merges tokens with a common prefix",
        flags="",
        untrusted=False,
    )
    dynatemp_range: float = _sampling(0.0, "range of the dynamic temperature; 0 = off", low=0)
    dynatemp_exponent: float = _sampling(
        1.0, "exponent of the dynamic temperature", low=0, flags="--dynatemp-exp"
    )
    repeat_last_n: int = _sampling(
        64, "number of recent tokens for the penalties; 0 = off, -1 = all", low=-1, parameter=True
    )
    repeat_penalty: float = _sampling(1.0, "divides recent tokens' logits; 1 = off", low=1e-3, parameter=True)
    frequency_penalty: float = _sampling(0.0, "subtracted for each recent use; 0 = off", parameter=True)
    presence_penalty: float = _sampling(0.0, "subtracted once for recent tokens; 0 = off", parameter=True)
    dry_multiplier: float = _sampling(0.0, "strength of the DRY repetition penalty; 0 = off", low=0)
    dry_base: float = _sampling(1.75, "base of the DRY penalty", low=0)
    dry_allowed_length: int = _sampling(2, "longest repetition that DRY does not penalise", low=0)
    dry_penalty_last_n: int = _sampling(64, "number of recent tokens for DRY; 0 = off, -1 = all", low=-1)
    dry_sequence_breakers: tuple[str, ...] = _sampling(
        ("\n", ":", '"', "*"), "strings that DRY does not match across (repeatable)", flags=""
    )
    mirostat: int = _sampling(0, "Mirostat 1 or 2; 0 = off", low=0, high=2)
    mirostat_tau: float = _sampling(5.0, "Mirostat's target entropy", low=0)
    mirostat_eta: float = _sampling(0.1, "Mirostat's learning rate", low=0)
    grammar: str = _sampling("", "GBNF grammar the text must follow; empty = none", flags="", untrusted=False)
    logit_bias: tuple[tuple[int, float], ...] = _sampling(
        (), "values added to logits: (token id, bias)", kind="pairs", flags="", untrusted=False
    )
    ignore_eos: bool = _sampling(False, "continue after an end-of-generation token", untrusted=False)
    max_repeats: float = _sampling(
        0.0, "end an answer whose last 512 tokens repeat themselves more often than this; 0 = never", low=0
    )
    think_budget: int = _sampling(
        -1, "maximum tokens of a thought; then it is closed and the answer begins; -1 = unlimited", low=-1
    )
    n_probs: int = _sampling(
        0, "log-probabilities to return per token; 0 = none", low=0, high=1000, flags="", untrusted=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise InvalidValueError("stop: a stop string is empty; it would end every answer at once")
        check_texts("stop", self.stop)
        check_texts("dry_sequence_breakers", self.dry_sequence_breakers)

    @property
    def wants_random_seed(self) -> bool:
        """True if the engine draws a random seed: for None, for -1, and for llama.cpp's value 0xFFFFFFFF."""
        return self.seed in self.RANDOM_SEEDS

    @staticmethod
    def fixed_seed(seed: int) -> int:
        """Returns the low 32 bits of a seed, but never 0xFFFFFFFF, for which llama.cpp would draw a random
        seed.
        """
        bits = seed & 0xFFFFFFFF
        # The replacement is far from the seed, because the caller may also use neighbouring seeds.
        return 0x7FFFFFFF if bits == 0xFFFFFFFF else bits


GROUPS: Mapping[str, type[ModelOptions] | type[DraftOptions] | type[SamplingOptions]] = {
    cls.GROUP: cls for cls in (ModelOptions, DraftOptions, SamplingOptions)
}


def split(options: Mapping[str, Any], *classes: type) -> list[dict[str, Any]]:
    """Splits keyword arguments by the option class that declares them, one dict per class.

    Raises `TypeError` for an unknown name and suggests the nearest one.
    """
    homes = {option.name: index for index, cls in enumerate(classes) for option in describe(cls)}
    parts: list[dict[str, Any]] = [{} for _ in classes]
    for name, value in options.items():
        if name not in homes:
            near = nearest(name, homes)
            known = f"did you mean {near!r}?" if near else f"known: {', '.join(sorted(homes))}"
            raise InvalidTypeError(f"unknown option {name!r}; {known}")
        parts[homes[name]][name] = value
    return parts
