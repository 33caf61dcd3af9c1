# SPDX-License-Identifier: MIT
"""The compiled extension. Only `eaglecpp.engine`, `eaglecpp.lowlevel` and `eaglecpp.log` import this module."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

def version_info() -> dict[str, str]:
    """Returns the versions found at run time (`llama`, `ggml`, `ggml_commit`) and `built_for`, the llama-cpp-python
    version.
    """

def system_info() -> dict[str, Any]:
    """Returns a dict: `devices` is a list of {name, description, kind, memory_total, memory_free}, `amx` is {claimed,
    works}, `n_cores` is a number.
    """

def available_memory() -> int:
    """Returns the host memory in bytes that is available without swapping and within a container's limit; 0 = unknown."""

def watch_rpc_server(endpoint: str, relay: str, pipe: int) -> None: ...
def lost_rpc_servers() -> list[tuple[str, str, str]]: ...
def drain_log() -> list[tuple[int, str]]:
    """Returns and removes the logged lines of llama.cpp, ggml and eaglecpp, as (logging level, text)."""

plan_reasons: Sequence[str]  # all values of `Timings.plan["reason"]`

def head_architectures() -> list[str]:
    """Returns the architectures whose models may have multi-token prediction heads that can draft
    (native/target/heads.cpp).
    """

class EngineOptions:
    """Options of an engine, with defaults. They have the same names as in `eaglecpp.options.ModelOptions` and
    `DraftOptions`.
    """

    target_path: str
    draft_path: str  # "" means no drafter
    n_ctx: int  # 0 means min(n_ctx_train, 4096), -1 means n_ctx_train
    n_batch: int
    n_ubatch: int
    n_threads: int  # 0 means the number of physical cores
    n_threads_batch: int  # 0 means n_threads
    n_gpu_layers: int  # -1 means all layers
    main_gpu: int
    split_mode: str  # one of "layer", "row" and "none"
    tensor_split: list[float]  # share of each GPU; [] divides by free memory
    n_cpu_moe: int  # number of layers whose experts stay in host memory; -1 means all layers
    override_tensor: list[str]  # entries of the form "PATTERN=BUFFER[,...]"
    flash_attn: str  # one of "auto", "on" and "off"
    type_k: str  # name of a ggml type, such as "f16"
    type_v: str
    use_mmap: bool
    use_mlock: bool
    offload_kqv: bool
    rope_freq_base: float  # 0 means the model's value
    rope_freq_scale: float
    repack: str  # "auto", "on" or "off"; selects extra CPU buffer types (AMX, repacked weights)
    kernels: str  # "auto" or "off"; selects eaglecpp's own CPU kernels
    n_sequences: int  # maximum number of open conversations
    separate_caches: bool  # gives each conversation its own cache, which disables trees
    n_draft_max: int  # maximum draft nodes per round, for all strategies
    n_draft_more: int  # additional draft nodes for a single conversation without a recurrent state
    n_leaves_max: int  # maximum tree leaves per round and sequence
    draft_device: str  # "auto", "cpu", or the name of a ggml device
    draft_type_kv: str  # one of "f16" and "f32"
    draft_window: int  # number of last tokens that the drafter attends to; 0 means the drafter's own value
    text_drafts: str  # "auto" if there is a drafter, "on" also without a drafter, or "off"
    exact: str  # one of "auto", "on" and "off"
    lora: list[tuple[str, float]]

    def __init__(self) -> None: ...

class SamplingParams:
    """Sampling options with llama.cpp's names and, where they exist, llama.cpp's defaults."""

    rng: str
    seed: int
    temperature: float  # a temperature of 0 or less means greedy sampling
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int  # 0 disables top-k
    top_p: float  # 1 disables top-p
    min_p: float  # 0 disables min-p
    typical_p: float  # 1 disables typical sampling
    top_n_sigma: float  # a negative number disables top-n-sigma
    xtc_probability: float  # 0 disables XTC
    xtc_threshold: float
    min_keep: int
    infill: bool  # applies llama.cpp's infill sampler after the truncating samplers
    repeat_last_n: int  # -1 means n_ctx tokens
    repeat_penalty: float  # 1 disables the repeat penalty
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float  # 0 disables DRY
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int  # -1 means n_ctx tokens
    dry_sequence_breakers: list[str]
    mirostat: int  # 0 disables mirostat; 1 and 2 are its versions
    mirostat_tau: float
    mirostat_eta: float
    grammar: str  # result of eaglecpp.engine.grammar; "" means no grammar
    logit_bias: list[tuple[int, float]]

    def __init__(self) -> None: ...

class Strategy:
    """How to draft: kind "off" | "chain" | "tree" | "auto"."""

    kind: str
    k: int  # children per frontier node; a chain has one child per node
    depth: int  # number of draft steps
    nodes: int  # number of draft nodes kept for verification

    def __init__(self, kind: str = "off", k: int = 1, depth: int = 0, nodes: int = 0) -> None: ...

class GenerateParams:
    """Parameters of one generation on one sequence."""

    sampling: SamplingParams
    strategy: Strategy
    max_tokens: int  # a negative number means until the context is full
    n_probs: int  # 0 means no log-probabilities
    ignore_eos: bool
    cache_prompt: bool  # reuses the cached prefix of the prompt
    exact: str  # overrides EngineOptions.exact; "" does not override
    draft_window: int  # overrides EngineOptions.draft_window; a negative number does not override
    log_plan: bool  # adds one line per round to timings()["plan_log"], with the planner's decision
    # acceptance rates for random acceptance, only for tests and benchmarks; the text is then not the target's
    synth_rates: list[float]

    def __init__(self) -> None: ...

class TokenLogprobs:
    logprob: float
    top: list[tuple[int, float]]  # n_probs pairs (token, logprob), best first

class StepResult:
    """Result of one step of a sequence. A slice of the prefill gives no tokens, a round gives 1 to depth + 1 tokens."""

    sequence: int
    phase: str  # one of "prefill" and "decode"
    n_prompt_done: int
    n_prompt: int
    tokens: list[int]  # if finish is "stop", the last token is the end-of-generation token
    accepted: list[bool]  # accepted[i] is True if tokens[i] was drafted
    logprobs: list[TokenLogprobs]  # empty if n_probs is 0
    finish: str  # one of "", "stop" and "length"
    error: Exception | None  # an error that ended only this generation; `tokens` is empty after an error

class MadeSampler:
    """A sampler for one generation, made by `Engine.make_sampler`."""

class SavedSequence:
    """A conversation that was saved between two generations. n_bytes: size of the blob, if it is read from a file;
    `check` must then validate it before other calls.
    """

    def __init__(self, n_bytes: int) -> None: ...
    def seal(self) -> None:
        """Writes the checksum into the blob. Call this before `blob` is written to a file."""

    def check(self, known: Sequence[int] = ()) -> None:
        """Raises ValueError if the blob was not made by `seal`. known: the first tokens of the blob, with this
        process's ids of images. The later tokens must not be image ids.
        """

    @property
    def blob(self) -> memoryview: ...  # the state itself, not a copy
    @property
    def tokens(self) -> list[int]: ...
    @property
    # lengths up to n_past to which the text can be cut, or [] for any length
    def ends(self) -> list[int]: ...
    @property
    def n_past(self) -> int: ...  # number of evaluated tokens
    @property
    def n_bytes(self) -> int: ...

class Embedder:
    """Computes vectors of texts with an engine's weights, in a separate context. Keeps the weights loaded."""

    def __init__(self, engine: Engine, pooling: str) -> None:
        """pooling: "none", "mean", "cls" or "last"; "" = the pooling that the file names, or "mean"."""
    @property
    def pooling(self) -> str: ...
    @property
    def n_values(self) -> int: ...  # number of values per vector
    @property
    def n_max(self) -> int: ...  # maximum number of tokens in one text
    def begin(self, texts: Sequence[Sequence[int]]) -> None: ...
    def step(self, n_threads: int) -> bool:
        """Runs one decode. Returns False once all texts have been read."""

    def take(self) -> NDArray[np.float32]:
        """Returns the vectors [texts, n_values], or [tokens, n_values] with pooling "none". They are not normalised."""

class Engine:
    """Owns target, drafter and sequences. Only one thread may use it: a concurrent call raises EngineBusyError."""

    def __init__(
        self, options: EngineOptions, on_progress: Callable[[], object] | None = None
    ) -> (
        None
        # The engine calls on_progress while it loads and measures models. An exception of on_progress cancels the
        # loading and is raised.
    ): ...
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
    # token id, or -1 if the vocabulary lacks this token; eos, nl and sep are the same kind of id
    def bos(self) -> int: ...
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
    def n_threads_now(
        self,
    ) -> int: ...  # number of threads for decoding, which falls while other processes need the cores
    @property
    def n_draft_max(self) -> int: ...
    @property
    def n_shared_rows(self) -> int: ...
    @property
    def chains_only(self) -> str: ...  # reason why trees are not supported, or ""
    @property
    def never_exact(self) -> str: ...  # reason why batches of several rows are never exact, or ""
    @property
    def keeps_order(self) -> bool: ...  # trees keep the order of cells, so trees can be exact
    def measure_exact_rows(self, go_on: Callable[[], bool]) -> None:
        """Measures the batch sizes, in rows, at which each row has the bits of a batch of one row, as far as they are
        unknown. Calls `go_on` before each decoding step, and stops if it returns False or raises. Sequences keep their
        rows: if none is empty, the shortest is swapped out meanwhile. Nothing is measured if that is impossible or if
        it has more than 2048 rows. Raises EngineBusyError if a sequence generates.
        """

    @property
    def drafts_forms_alone(self) -> bool: ...  # all drafts are tokens that a grammar forces
    # For the arguments see `exact_state`. If is_complete is False, measure_exact_rows() measures the other sizes.
    def set_exact_rows(
        self, points: Sequence[tuple[int, bool]], alone: Sequence[int] = (), is_complete: bool = True
    ) -> None: ...
    @property
    def exact_state(self) -> dict[str, Any]:
        """The measurement so far: rows (exact sizes, such as "1-5, 8"), points (measured pairs of size and is_exact),
        alone (hashes of rows that ran alone), is_complete, and decodes and ms (steps and milliseconds so far).
        """
    def metadata(self) -> dict[str, str]: ...
    # keys are pre, suf, mid, rep and sep, if the vocabulary has these tokens
    def fim_tokens(self) -> dict[str, int]: ...
    def chat_template(self, name: str = "") -> str: ...  # returns "" if the file has no such template
    def draft_info(self) -> dict[str, Any] | None: ...
    def device_info(self) -> dict[str, Any]:
        """Returns `target` (device names), `draft`, `draft_why` (reason why the drafter is not on its best device, or
        ""), `taps`, `repack`, `kernels`, `n_threads`.
        """

    def memory_plan(self) -> list[dict[str, Any]]:
        """Returns a dict for each device: `device`, `free`, `total`, and the bytes of `weights`, `cache` and `compute`
        with the prefixes `target_` and `draft_`.
        """

    @overload
    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]: ...
    @overload
    def tokenize(
        self, text: bytes, add_special: bool, parse_special: bool, n_max: int
    ) -> list[int] | None: ...  # returns None if the text has more than n_max tokens
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
        """Returns a sampler, which is the slow part of starting a generation. Thread-safe."""

    def begin(
        self, sequence: int, prompt: Sequence[int], params: GenerateParams, sampler: MadeSampler | None = None
    ) -> int:
        """Starts a generation and ends the sequence's previous one. Returns the number of reused prompt tokens.
        sampler: result of `make_sampler` with the same parameters. A sampler can be used once.
        """

    def step(self, sequences: Sequence[int], for_ms: float = 0.0) -> list[StepResult]:
        """Runs a prefill slice or a round for each sequence, without the GIL. If all sequences generate, runs rounds
        until `for_ms` milliseconds have passed; each result then covers several rounds.
        """

    def end(self, sequence: int, n_taken: int = -1) -> None:
        """Ends the sequence's generation. The prompt and the first n_taken tokens (< 0: all) stay for prefix reuse. May
        be called at any time between steps.
        """

    def find_image(self, key: str) -> tuple[int, int] | None:
        """Returns the id of an image's first row and its number of rows, or None. Later rows have lower ids."""

    def image_id(self, key: str, n_rows: int) -> int:
        """Returns the id of an image's first row. Equal arguments give the same id."""

    def image_name(self, token: int) -> tuple[str, int] | None:
        """Returns the key and the number of rows of the image that has a row with this id, or None."""

    def has_image(self, token: int) -> bool:
        """Returns True if the image with this row id is still stored."""

    def add_image(
        self, key: str, rows: NDArray[np.float32], is_whole: bool, n_columns: int = 0
    ) -> tuple[int, int]:
        """Adds an image and returns the same as `find_image`. rows: [n, width of the target's input]; is_whole: the
        rows attend to each other in both directions; n_columns: columns of rows that are numbered in three dimensions
        (M-RoPE), 0 = the rows are numbered like text. The engine keeps only the most recently used images.
        """

    def tokens(self, sequence: int) -> list[int]:
        """Returns the committed tokens of the sequence (prompt and generated)."""

    def timings(self, sequence: int) -> dict[str, Any]:
        """Returns raw counters of the current or last generation: prompt_n, prompt_ms, predicted_n, predicted_ms,
        draft_n, draft_n_accepted, text_draft_n, text_draft_n_accepted, rounds, draft_ms, verify_ms, host_ms,
        tried_per_depth, accepted_per_depth (counts), reused_n, exact, cut (node limit of a cut strategy, -1 = not cut),
        plan (see `Timings.plan`), plan_log (lines).
        """

    def planner_state(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Returns the state of the cost table and of the acceptance model, as lists of numbers by name."""

    def load_planner(self, costs: dict[str, list[float]], acceptance: dict[str, list[float]]) -> bool:
        """Loads the state that `planner_state()` returned. Returns False if numbers are invalid, which leaves invalid
        parts unchanged.
        """
    def planner_report(self, sequence: int) -> dict[str, Any]:
        """Returns the planner's statistics. Times are in ms: plain_ms (target-only step, None = not measured), host_ms
        (host time of a drafting round beyond that of a target-only round), plain_host_ms (host time of a target-only
        round); verify, commit, level: lists of (n_rows, ms, n_samples; 0 = interpolated); change_ms; labels: number of
        likeliest draft tokens judged so far; chances: mean acceptance of the likeliest draft token in this text, by
        depth."""

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
    def d2t(self) -> list[int]: ...  # the target's token id for each draft id

class Target:
    """A target without an engine. Gives the hidden states and logits of token lists, for research, tests and training
    data.
    """

    def __init__(self, options: EngineOptions, layers: Sequence[int]) -> None: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_ubatch(self) -> int: ...  # maximum rows of one compute graph, at least n_draft_max + 1
    @property
    def taps(self) -> str: ...  # way in which hidden states are read: "layer_inp", "cb_eval" or "none"
    def forward(
        self, tokens: Sequence[int], want_logits: bool = True
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Runs the tokens in a cleared context. Returns hidden states f32 [n_layers, n_tokens, n_embd] and logits f32
        [n_tokens, n_vocab].
        """

    def time_rows(self, prefix: Sequence[int], tokens: Sequence[int], repeats: int = 1) -> list[float]:
        """Decodes the tokens after the prefix, as one batch in which every row has logits, `repeats` times. Returns the
        milliseconds of each decode. The prefix is run again only if it differs from the prefix of the last call."""

class Sampler:
    """A sampler without an engine, for logits f32 [n_vocab]. If `target` is only a vocabulary size, DRY and grammars
    are not available.
    """

    def __init__(self, params: SamplingParams, target: Target | int) -> None: ...
    def accept_prompt(self, tokens: Sequence[int]) -> None: ...
    def accept(self, token: int) -> None: ...
    def allowed(self) -> list[bool]:
        """Returns for each token of the vocabulary whether the grammar allows it as the next token; all True without a
        grammar.
        """

    def sample(self, logits: NDArray[np.float32], pos: int) -> int:
        """Samples and returns the token at index `pos` of the text."""

    def count(self, logits: NDArray[np.float32], first: int, n: int) -> list[int]:
        """Samples at the positions first to first + n - 1, and returns how often each token was chosen."""

class Drafter:
    """A drafter without an engine: runs teacher-forced forward passes on numpy arrays."""

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
    def n_rows(self) -> int: ...  # number of committed rows
    def reset(self) -> None: ...
    def commit(
        self, features: NDArray[np.float32], tokens: Sequence[int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Commits rows with the target's hidden states, f32 [n_aux, n_rows, n_embd_target]. Row i embeds tokens[i].
        Returns the draft logits f32 [n_draft_vocab] and the state f32 [n_embd] of the last row."""

    def commit_ahead(
        self, features: NDArray[np.float32], tokens: Sequence[int], n_ahead: int
    ) -> NDArray[np.float32]:
        """Commits rows of a parallel drafter (P-EAGLE), then runs n_ahead masked rows and drops these again.
        Returns the logits of the next n_ahead + 1 tokens, [n_ahead + 1, n_draft_vocab].
        """

    def block(
        self, features: NDArray[np.float32], tokens: Sequence[int], behind: Sequence[int], k: int
    ) -> list[list[tuple[int, float, float]]]:
        """Commits rows of a block drafter and runs the block after them. Returns a list for each of the first
        len(behind) + 1 positions: the k likeliest tokens, as (target id, log-probability, logit of the position's
        confidence or 0 without a confidence head). behind: tokens after the anchor; some drafters depend on them.
        """

    def append(self, features: NDArray[np.float32], tokens: Sequence[int]) -> None:
        """Commits rows of a prompt without computing outputs, which is cheaper. Before draft rows, call commit() at
        least once more.
        """

    def extend(
        self, states: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Runs draft rows after the committed rows. states: f32 [n_rows, n_embd]; parents index earlier draft rows of
        the same tree (-1 = the last committed row). Returns logits [n_rows, n_draft_vocab], states [n_rows, n_embd]."""

    def truncate(self, n_rows: int) -> None: ...
    def kv(self, layer: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns K and V of the committed rows, f32 [n_rows, n_kv_heads, head_dim]."""

class TextIndex:
    """Proposes the tokens that followed the last occurrence of the text's suffix; see native/algo/text.h."""

    def __init__(self, n_max: int) -> None: ...
    def add(self, token: int) -> None: ...
    def propose(self, n: int) -> list[int]: ...

def load_llguidance(path: str) -> None:
    """Loads the shared library of llguidance, once per process. Grammars need this library."""

def check_grammar(text: str) -> None:
    """Raises GrammarError if the text is invalid for every vocabulary."""
