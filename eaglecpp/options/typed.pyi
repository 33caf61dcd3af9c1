# SPDX-License-Identifier: MIT
"""The options as keyword-argument types, for editors and type checkers only.

Written by docs/generate_options.py from `declared`; a test compares the two.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from eaglecpp.chat.template import ChatTemplate
from eaglecpp.options.declared import SamplingOptions
from eaglecpp.options.strategy import Strategy

class ModelKeywords(TypedDict, total=False):
    """Options for loading the target."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    n_threads_batch: int
    n_gpu_layers: int
    main_gpu: int
    split_mode: Literal["layer", "row", "tensor", "none"]
    tensor_split: str | Sequence[float]
    n_cpu_moe: int
    override_tensor: str | Sequence[str]
    flash_attn: Literal["auto", "on", "off"]
    type_k: Literal["auto", "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
    type_v: Literal["auto", "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
    use_mmap: bool
    use_mlock: bool
    offload_kqv: bool
    rope_freq_base: float
    rope_freq_scale: float
    repack: Literal["auto", "on", "off"]
    kernels: Literal["auto", "off"]
    n_sequences: int
    separate_caches: bool
    lora: Mapping[str, float] | Sequence[tuple[str, float]]
    mmproj: str
    rpc: str | Sequence[str]
    prompt_cache: str
    prompt_cache_bytes: str

class DraftKeywords(TypedDict, total=False):
    """Where the drafter runs, and the limits of drafting."""

    n_draft_max: int
    n_leaves_max: int
    draft_device: str
    draft_type_kv: Literal["f16", "f32"]
    draft_window: int
    text_drafts: Literal["auto", "on", "off"]
    learn: bool
    exact: Literal["auto", "on", "off"]
    planner_cache: bool

class SamplingKeywords(TypedDict, total=False):
    """One generation: when it stops and how tokens are chosen."""

    max_tokens: int
    temperature: float
    seed: int | None
    rng: Literal["coupled", "llama"]
    stop: str | Sequence[str]
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    infill: bool
    dynatemp_range: float
    dynatemp_exponent: float
    repeat_last_n: int
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    grammar: Any
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    ignore_eos: bool
    max_repeats: float
    think_budget: int
    n_probs: int

class OpenKeywords(ModelKeywords, DraftKeywords, SamplingKeywords, total=False):
    """Keyword arguments of `Engine.open(...)`; sampling options are defaults for each generation."""

class GenerateKeywords(SamplingKeywords, total=False):
    """Keyword arguments of `Session.stream`, which documents them."""

    suffix: str | None
    cache_prompt: bool
    sampling: SamplingOptions | None
    strategy: str | Strategy | None
    exact: str | None
    json_schema: str | Mapping[str, Any] | None
    response_format: Mapping[str, Any] | None
    on_prefill: Callable[[int, int], None] | None
    stop_when: Callable[[list[int]], bool] | None
    utf8_errors: str
    log_plan: bool

class ChatKeywords(GenerateKeywords, total=False):
    """Keyword arguments of `Session.chat`, which documents them."""

    template: str | ChatTemplate | None
    tools: Sequence[Mapping[str, Any]]
    think: bool | str | None
