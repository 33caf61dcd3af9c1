# SPDX-License-Identifier: MIT
"""The compiled extension. Nothing outside `eaglecpp.engine`, `eaglecpp.lowlevel` and `eaglecpp.log` imports it."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

def version_info() -> dict[str, str]:
    """Versions seen at run time: `llama`, `ggml`, `ggml_commit`; and `built_for`, the llama-cpp-python version."""

def system_info() -> dict[str, Any]:
    """`devices`: list of {name, description, kind, memory_total, memory_free}; `amx`: {claimed, works}; `n_cores`."""

def available_memory() -> int:
    """Bytes of host memory that can be had without swapping and within a container's limit; 0: unknown."""

def watch_rpc_server(endpoint: str, relay: str, pipe: int) -> None: ...
def lost_rpc_servers() -> list[tuple[str, str, str]]: ...
def drain_log() -> list[tuple[int, str]]:
    """Log lines of llama.cpp, ggml and ours since the last call, as (logging level, text)."""

plan_reasons: Sequence[str]  # of `Timings.plan["reason"]`

def head_architectures() -> list[str]:
    """Whose heads for further tokens can draft (native/target/heads.cpp)."""

class EngineOptions:
    """Plain struct; every field has a default. Names as in `eaglecpp.options.ModelOptions` / `DraftOptions`."""

    target_path: str
    draft_path: str  # "" = no drafter
    n_ctx: int  # 0 = min(n_ctx_train, 4096), -1 = n_ctx_train
    n_batch: int
    n_ubatch: int
    n_threads: int  # 0 = physical cores
    n_threads_batch: int  # 0 = n_threads
    n_gpu_layers: int  # -1 = all
    main_gpu: int
    split_mode: str  # "layer" | "row" | "none"
    tensor_split: list[float]  # share of each GPU; [] = by free memory
    n_cpu_moe: int  # layers whose experts stay in host memory; -1 = all
    override_tensor: list[str]  # "PATTERN=BUFFER[,...]"
    flash_attn: str  # "auto" | "on" | "off"
    type_k: str  # ggml type name, "f16"
    type_v: str
    use_mmap: bool
    use_mlock: bool
    offload_kqv: bool
    rope_freq_base: float  # 0 = from the model
    rope_freq_scale: float
    repack: str  # "auto" | "on" | "off": extra CPU buffer types (AMX, repacked weights)
    kernels: str  # "auto" | "off": our own CPU kernels
    n_sequences: int  # conversations that can be open at once
    separate_caches: bool  # one for each conversation; then without trees
    n_draft_max: int  # most draft nodes in one round, all strategies
    n_draft_more: int  # beyond that, for one conversation on a target without recurrent states
    n_leaves_max: int  # most tree leaves in one round and sequence
    draft_device: str  # "auto" | "cpu" | a ggml device name
    draft_type_kv: str  # "f16" | "f32"
    draft_window: int  # the last tokens that the drafter attends to; 0 = as its file says
    text_drafts: str  # "auto" = beside a drafter | "on" = without one, too | "off"
    exact: str  # "auto" | "on" | "off"
    lora: list[tuple[str, float]]

    def __init__(self) -> None: ...

class SamplingParams:
    """Plain struct in llama.cpp's terms; defaults are llama.cpp's where it has one."""

    rng: str
    seed: int
    temperature: float  # <= 0: greedy
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int  # 0 = off
    top_p: float  # 1 = off
    min_p: float  # 0 = off
    typical_p: float  # 1 = off
    top_n_sigma: float  # < 0 = off
    xtc_probability: float  # 0 = off
    xtc_threshold: float
    min_keep: int
    infill: bool  # llama.cpp's infill sampler, behind those that truncate
    repeat_last_n: int  # -1 = n_ctx
    repeat_penalty: float  # 1 = off
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float  # 0 = off
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int  # -1 = n_ctx
    dry_sequence_breakers: list[str]
    mirostat: int  # 0 | 1 | 2
    mirostat_tau: float
    mirostat_eta: float
    grammar: str  # of eaglecpp.engine.grammar, "" = none
    logit_bias: list[tuple[int, float]]

    def __init__(self) -> None: ...

class Strategy:
    """How to use the drafter: kind "off" | "chain" | "tree" | "auto"."""

    kind: str
    k: int  # children per frontier node; 1 for a chain
    depth: int  # draft levels
    nodes: int  # draft nodes kept for verification

    def __init__(self, kind: str = "off", k: int = 1, depth: int = 0, nodes: int = 0) -> None: ...

class GenerateParams:
    """One generation on one sequence."""

    sampling: SamplingParams
    strategy: Strategy
    max_tokens: int  # < 0: until the context is full
    n_probs: int  # 0 = no log-probabilities
    ignore_eos: bool
    cache_prompt: bool  # go on from what the caches hold of the prompt
    exact: str  # as EngineOptions.exact, "" = as the engine was opened
    draft_window: int  # as EngineOptions.draft_window, < 0 = as the engine was opened
    log_plan: bool  # timings()["plan_log"] gets every round's decision as a line
    synth_rates: list[float]  # tests and benchmarks only: accept drafts by lot; the text is not the target's

    def __init__(self) -> None: ...

class TokenLogprobs:
    logprob: float
    top: list[tuple[int, float]]  # (token, logprob), best first, n_probs of them

class StepResult:
    """What one step of one sequence gave: a slice of the prefill (no tokens) or one round (1..depth+1 tokens)."""

    sequence: int
    phase: str  # "prefill" | "decode"
    n_prompt_done: int
    n_prompt: int
    tokens: list[int]  # an end-of-generation token is included as the last one when finish == "stop"
    accepted: list[bool]  # accepted[i]: tokens[i] was drafted
    logprobs: list[TokenLogprobs]  # empty unless n_probs > 0
    finish: str  # "" | "stop" | "length"
    error: Exception | None  # why this generation, and no other, has ended; with it come no tokens

class MadeSampler:
    """Of `Engine.make_sampler`, for one generation."""

class SavedSequence:
    """A conversation between two generations, outside of the caches. n_bytes: room for the blob of a file,
    which `check` validates before anything else may be called.
    """

    def __init__(self, n_bytes: int) -> None: ...
    def seal(self) -> None:
        """Writes the checksum. Call before `blob` goes to a file."""

    def check(self) -> None:
        """Raises ValueError for a blob that `seal` did not make, or with tokens of images."""

    @property
    def blob(self) -> memoryview: ...  # in place
    @property
    def tokens(self) -> list[int]: ...
    @property
    def n_past(self) -> int: ...  # tokens that have been run
    @property
    def n_bytes(self) -> int: ...

class Embedder:
    """Vectors of texts, in a context of its own on an engine's weights, which it keeps."""

    def __init__(self, engine: Engine, pooling: str) -> None:
        """pooling: none, mean, cls, last or rank; "" = the file's, or the mean."""
    @property
    def pooling(self) -> str: ...
    @property
    def n_values(self) -> int: ...  # of a row
    @property
    def n_most(self) -> int: ...  # tokens of the longest text
    def begin(self, texts: Sequence[Sequence[int]]) -> None: ...
    def step(self, n_threads: int) -> bool:
        """One decode; False once all texts were read."""

    def take(self) -> NDArray[np.float32]:
        """[texts, n_values], or without pooling [tokens, n_values]; not normalised."""

class Engine:
    """Owns target, drafter and sequences. One thread at a time: a concurrent call raises EngineBusyError."""

    def __init__(
        self, options: EngineOptions, on_progress: Callable[[], object] | None = None
    ) -> (
        None
    ): ...  # on_progress: called while models load and are measured; an exception cancels that, and is raised
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_params(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def bos(self) -> int: ...  # -1 = none; so for eos, nl, sep
    @property
    def eos(self) -> int: ...
    @property
    def nl(self) -> int: ...
    @property
    def sep(self) -> int: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def add_eos(self) -> bool: ...
    @property
    def only_embeds(self) -> bool: ...
    def check_generates(self) -> None:
        """Raises UnsupportedError for an embedding model."""

    @property
    def n_threads_now(self) -> int: ...  # of decoding; fewer than device_info()'s while others need the cores
    @property
    def n_draft_max(self) -> int: ...
    @property
    def n_shared_rows(self) -> int: ...
    @property
    def chains_only(self) -> str: ...  # why; "" = takes trees, too
    @property
    def never_exact(self) -> str: ...  # why no batch of several rows can be exact; "" = it can
    @property
    def keeps_order(self) -> bool: ...  # trees leave the order of cells as it is, so they can be exact
    def measure_exact_rows(self, sequence: int = -1) -> dict[str, Any]:
        """At which numbers of rows a batch holds the bits of single rows: `points`, `decodes`, `ms`. Before any
        sequence is open, or in one, which is cleared, while no other one generates; EngineBusyError.
        """

    @property
    def drafts_forms_alone(self) -> bool: ...  # forced tokens of grammars, and nothing else
    def set_exact_rows(self, points: Sequence[tuple[int, bool]]) -> None: ...
    @property
    def exact_points(self) -> list[tuple[int, bool]]: ...  # as measured: (rows, is_exact)
    @property
    def exact_rows(self) -> str: ...  # "1-5, 8"
    def metadata(self) -> dict[str, str]: ...
    def fim_tokens(self) -> dict[str, int]: ...  # pre, suf, mid, rep, sep: those that the vocabulary has
    def chat_template(self, name: str = "") -> str: ...  # "" when the file has none
    def draft_info(self) -> dict[str, Any] | None: ...
    def device_info(self) -> dict[str, Any]:
        """`target` (names), `draft`, `draft_why` (why the drafter is not where it would best be, or ""), `taps`,
        `repack`, `kernels`, `n_threads`.
        """

    def memory_plan(self) -> list[dict[str, Any]]:
        """For each device: `device`, `free` and `total`, and in bytes what `target_` and `draft_` hold as
        `weights`, `cache` and `compute`.
        """

    @overload
    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]: ...
    @overload
    def tokenize(
        self, text: bytes, add_special: bool, parse_special: bool, n_most: int
    ) -> list[int] | None: ...  # None when there are more
    def detokenize(self, tokens: Sequence[int], remove_special: bool, special: bool) -> bytes: ...
    def token_to_piece(self, token: int, special: bool) -> bytes: ...
    def is_eog(self, token: int) -> bool: ...
    def open_sequence(self) -> int: ...
    def close_sequence(self, sequence: int) -> None: ...
    @property
    def can_save(self) -> bool: ...
    def save(self, sequence: int) -> SavedSequence: ...
    def restore(self, sequence: int, saved: SavedSequence) -> bool: ...
    def make_sampler(self, params: GenerateParams) -> MadeSampler:
        """What of a generation costs time before it begins. For any thread at any time."""

    def begin(
        self, sequence: int, prompt: Sequence[int], params: GenerateParams, sampler: MadeSampler | None = None
    ) -> int:
        """Starts a generation; returns how many prompt tokens were reused. Ends a running one of this sequence.
        `sampler`: made with the same parameters before; it serves once.
        """

    def step(self, sequences: Sequence[int], for_ms: float = 0.0) -> list[StepResult]:
        """One prefill slice or one round for each; GIL released. While all of them generate, rounds follow each other
        until `for_ms` milliseconds have passed; each result is then of several rounds.
        """

    def end(self, sequence: int, n_taken: int = -1) -> None:
        """Ends the running generation; what was committed stays for prefix reuse, as far as the n_taken tokens that
        were used (< 0: all). Legal at any time between steps.
        """

    def find_image(self, key: str) -> tuple[int, int] | None:
        """An image that was added: the id of its first row, whose next ones count down from there, and their number."""

    def has_image(self, token: int) -> bool:
        """Whether the image with a row of this id is still there."""

    def add_image(
        self, key: str, rows: NDArray[np.float32], is_whole: bool, n_columns: int = 0
    ) -> tuple[int, int]:
        """As `find_image`, for a new one. rows: [n, values of the target's input]; is_whole: they see each other in both directions.
        n_columns: of rows that a target numbers in three directions (M-RoPE); 0 = as text.
        The engine keeps the images used of late.
        """

    def tokens(self, sequence: int) -> list[int]:
        """Tokens committed in the sequence (prompt and generated)."""

    def timings(self, sequence: int) -> dict[str, Any]:
        """Raw counters of the current or last generation: prompt_n, prompt_ms, predicted_n, predicted_ms, draft_n,
        draft_n_accepted, text_draft_n, text_draft_n_accepted, rounds, draft_ms, verify_ms, host_ms, tried_per_depth, accepted_per_depth (counts),
        reused_n, exact, cut (nodes that a strategy was cut to, -1 = none), plan (see `Timings.plan`), plan_log (lines)."""

    def planner_state(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Cost table and acceptance model, as numbers by name."""

    def load_costs(self, state: dict[str, list[float]]) -> bool:
        """False, and nothing changed, where the numbers cannot be; so for the next one."""

    def load_acceptance(self, state: dict[str, list[float]]) -> bool: ...
    def planner_report(self, sequence: int) -> dict[str, Any]:
        """What the planner knows. Times in ms: plain_ms (None: not measured), host_ms (of a drafting round beyond a
        plain one), plain_host_ms; verify, commit, level: lists of (n_rows, ms, n_samples; 0 = interpolated).
        change_ms; labels: first drafts that were judged so far; chances: of the first draft, by depth."""

    def clear(self, sequence: int) -> None: ...
    def close(self) -> None: ...

def check_lora(path: str, target: str) -> None: ...
def check_projector(path: str) -> None: ...

class DraftFile:
    """A drafter GGUF, read and validated without loading tensor data."""

    def __init__(self, path: str) -> None: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def d2t(self) -> list[int]: ...  # draft id -> target id
    @property
    def tensors(self) -> list[dict[str, Any]]: ...  # name, type, shape (slowest axis first), n_bytes

class Target:
    """The target alone, for study, tests and training data: features and logits of token lists."""

    def __init__(self, options: EngineOptions, layers: Sequence[int]) -> None: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_ubatch(self) -> int: ...  # rows of one compute graph, n_draft_max + 1 at least
    @property
    def taps(self) -> str: ...  # "layer_inp" | "cb_eval" | "none"
    def forward(
        self, tokens: Sequence[int], want_logits: bool = True
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Fresh context. Returns features f32 [n_layers, n_tokens, n_embd] and logits f32 [n_tokens, n_vocab]."""

    def time_rows(self, prefix: Sequence[int], tokens: Sequence[int], repeats: int = 1) -> list[float]:
        """Milliseconds of each of `repeats` decodes of the tokens as rows of one batch, all with logits, behind the
        prefix, which is run again only when it is another one than last time."""

class Sampler:
    """The target's sampler alone, on given logits f32 [n_vocab]; with a vocabulary size only, neither DRY nor grammar."""

    def __init__(self, params: SamplingParams, target: Target | int) -> None: ...
    def accept_prompt(self, tokens: Sequence[int]) -> None: ...
    def accept(self, token: int) -> None: ...
    def allowed(self) -> list[bool]:
        """For each token of the vocabulary whether the grammar, if there is one, lets it follow."""

    def sample(self, logits: NDArray[np.float32], pos: int) -> int:
        """The token at index `pos` of the text."""

    def count(self, logits: NDArray[np.float32], first: int, n: int) -> list[int]:
        """How often each token is sampled at positions first to first + n - 1."""

class Drafter:
    """The drafter alone: teacher-forced forward on numpy arrays."""

    def __init__(
        self,
        path: str,
        options: EngineOptions | None = None,
        embedding: NDArray[np.float32] | None = None,
        head: NDArray[np.float32] | None = None,
    ) -> None: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def n_rows(self) -> int: ...  # committed
    def reset(self) -> None: ...
    def commit(
        self, features: NDArray[np.float32], tokens: Sequence[int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Appends rows with true features, f32 [n_aux, n_rows, n_embd_target]; row i embeds tokens[i].
        Returns draft logits f32 [n_draft_vocab] and fed state f32 [n_embd] of the last row."""

    def commit_ahead(
        self, features: NDArray[np.float32], tokens: Sequence[int], n_ahead: int
    ) -> NDArray[np.float32]:
        """As commit(), of a parallel drafter (P-EAGLE): n_ahead masked rows follow and leave nothing behind. Returns
        the logits of the next n_ahead + 1 tokens, [n_ahead + 1, n_draft_vocab].
        """

    def block(
        self, features: NDArray[np.float32], tokens: Sequence[int], behind: Sequence[int], k: int
    ) -> list[list[tuple[int, float, float]]]:
        """As commit(), of a block drafter, with the pass over a block behind the rows: for each of the first
        len(behind) + 1 slots its k likeliest tokens as target ids, with their log-probabilities and the logit of the
        slot's confidence (0 without such a head), given the tokens `behind` the anchor, where it depends on them.
        """

    def append(self, features: NDArray[np.float32], tokens: Sequence[int]) -> None:
        """As commit(), of rows whose outputs nobody needs: a prompt. Cheaper; draft rows may follow commit() only."""

    def extend(
        self, states: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Runs draft rows after the committed ones: states f32 [n_rows, n_embd]; parents index earlier draft rows of
        this tree (-1 = the last committed row). Returns logits [n_rows, n_draft_vocab], states [n_rows, n_embd]."""

    def truncate(self, n_rows: int) -> None: ...
    def kv(self, layer: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """K and V of the committed rows, f32 [n_rows, n_kv_heads, head_dim]."""

class TextIndex:
    """What followed the last time a text read as it does now: native/algo/text.h."""

    def __init__(self, n_max: int) -> None: ...
    def add(self, token: int) -> None: ...
    def propose(self, n: int) -> list[int]: ...

def load_llguidance(path: str) -> None:
    """Loads the shared library of llguidance, once; grammars need it."""

def check_grammar(text: str) -> None:
    """Raises GrammarError for a text that no matcher can be made of, whatever the vocabulary."""
