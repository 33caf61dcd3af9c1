# SPDX-License-Identifier: MIT
"""`eaglecpp.Llama`: `llama_cpp.Llama` with a drafter, for the uses of most programs.

    from eaglecpp import Llama            # was: from llama_cpp import Llama
    llm = Llama("target.gguf", draft_model="draft.gguf", n_ctx=4096)
    llm("def main():", max_tokens=64)["choices"][0]["text"]

Arguments, defaults and result dictionaries are the same (plus `timings`), and `isinstance` checks for
`llama_cpp.Llama` pass. Logits processors and llama_cpp's own state (`_ctx`, `scores`, `eval`) go to a second
instance without drafts, the plain twin (`llama.plain`). Unsupported arguments raise an error with the reason.
docs/python-api.md lists these arguments. New code should use `eaglecpp.Engine`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import inspect
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, overload

import numpy as np
from gguf import GGMLQuantizationType

from eaglecpp.engine.engine import Engine
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.engine.infill import Infill
from eaglecpp.engine.stream import Stream
from eaglecpp.errors import ContextFullError, InvalidValueError, ModelNotFoundError
from eaglecpp.llama.formatter import find_handler
from eaglecpp.llama.limits import refuse, refuse_others
from eaglecpp.llama.mirror import Mirror
from eaglecpp.llama.plain import TheirLlama
from eaglecpp.llama.shapes import completes, part_of
from eaglecpp.options import ModelOptions, SamplingOptions, Strategy, describe
from eaglecpp.results import Completion, LogprobLists, TokenLogprob

if TYPE_CHECKING:
    from eaglecpp.llama.shapes import ChatCompleted, ChatPart, Completes

Messages = Sequence[Mapping[str, object]]
Texts = str | list[str]
Vectors = list[float] | list[list[float]]
"""The vector of a text; without pooling, one vector for each of its tokens."""
_DEFAULT_SEED = 0xFFFFFFFF
_POOLINGS = ("none", "mean", "cls", "last", "rank")


class Llama(Mirror):
    """A model with the interface of `llama_cpp.Llama`. `engine` is the underlying `eaglecpp.Engine`.

    `draft_model`: path of a drafter GGUF, or "text" for drafts from the text itself. `strategy`: see
    `eaglecpp.Strategy`. `n_ctx=0`: the model's own context length. `verbose` has no effect; llama.cpp's log
    always goes to `logging` ("eaglecpp.native"). `rng`: source of sampled tokens. "coupled", the default,
    lets drafts agree with sampled text, but a seed gives another text than in llama_cpp. "llama" samples the
    same tokens as llama.cpp. Raises `ValueError` for a missing file, `UnsupportedError` for unsupported
    arguments, and the errors of `Engine.open`.
    """

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        main_gpu: int = 0,
        use_mmap: bool = True,
        use_mlock: bool = False,
        seed: int = _DEFAULT_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        offload_kqv: bool = True,
        flash_attn: bool | None = None,
        last_n_tokens_size: int = 64,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        chat_format: str | None = None,
        chat_handler: Callable[..., Any] | None = None,
        draft_model: str | os.PathLike[str] | Literal[False] | None = None,
        type_k: int | str | None = None,
        type_v: int | str | None = None,
        verbose: bool = True,
        strategy: str | Strategy = "auto",
        rng: str = "coupled",
        **others: Any,
    ) -> None:
        refuse_others(others)
        if draft_model not in (None, False) and not isinstance(draft_model, str | os.PathLike):
            refuse(
                f"draft_model={type(draft_model).__name__}",
                "pass the path of a drafter GGUF; llama_cpp's draft model objects propose tokens "
                "without the target's hidden states",
            )
        # A chat handler that turns messages into a prompt is supported. An image handler is not supported,
        # because it needs llama_cpp's own context.
        if hasattr(chat_handler, "clip_model_path") or not (chat_handler is None or callable(chat_handler)):
            refuse(
                f"chat_handler={type(chat_handler).__name__}",
                "images need llama_cpp's own context; use llama_cpp.Llama",
            )
        named = {name: value for name, value in locals().items() if name not in ("self", "others")}
        self._given = given = named | others
        own: dict[str, Any] = {"type_k": _type_number(type_k), "type_v": _type_number(type_v)}
        own |= {"model_path": os.fspath(model_path), "draft_model": None}
        own |= {"verbose": False, "flash_attn": bool(flash_attn)}
        self._arguments = {
            name: (given | own).get(name, parameter.default)
            for name, parameter in inspect.signature(TheirLlama.__init__).parameters.items()
            if name not in ("self", "kwargs")
        }
        self._twin_is_ahead = False
        self.model_path = os.fspath(model_path)
        self.draft_model = draft_model
        self.verbose = verbose
        self.chat_format = chat_format
        self.chat_handler = chat_handler
        self._chat_handlers: dict[str, Any] = {}
        self.last_n_tokens_size = last_n_tokens_size
        self._seed = seed or _DEFAULT_SEED
        self._rng = SamplingOptions(rng=rng).rng
        self._timings: dict[str, Any] = {}
        self.cache = None
        model = _same_names(ModelOptions, named) | {
            "n_ctx": n_ctx or -1,
            "n_ubatch": min(n_batch, n_ubatch),
            "n_threads": n_threads or 0,
            "n_threads_batch": n_threads_batch or 0,
            "n_gpu_layers": max(n_gpu_layers, -1),
            "flash_attn": "auto" if flash_attn is None else "on" if flash_attn else "off",
            "type_k": _type_name(type_k),
            "type_v": _type_name(type_v),
            "lora": () if lora_path is None else ((os.fspath(lora_path), lora_scale),),
        }
        try:
            self.engine = Engine.open(model_path, draft_model, strategy=strategy, model=ModelOptions(**model))
        except ModelNotFoundError as error:
            raise InvalidValueError(f"Model path does not exist: {error}") from None
        self.metadata = self.engine.metadata
        try:
            self.chat_format, self._chat_handler = find_handler(self.chat_format, self.metadata, self.engine)
        except ValueError:
            self.close()
            raise

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Downloads a GGUF from the Hugging Face Hub and opens it. `filename` and `additional_files` (further
        shards) are names or glob patterns, each of which matches one file. `**options` are options of the
        constructor.
        """
        from huggingface_hub import hf_hub_download, list_repo_files

        folder = None if local_dir is None else os.fspath(local_dir)
        cache = None if cache_dir is None else os.fspath(cache_dir)
        options.pop("local_dir_use_symlinks", None)  # huggingface_hub ignores this option since version 0.23
        names = list_repo_files(repo_id)
        paths = [
            hf_hub_download(repo_id, _one_match(names, pattern, repo_id), local_dir=folder, cache_dir=cache)
            for pattern in [filename, *(additional_files or ())]
        ]
        return cls(paths[0], **options)

    @completes
    @functools.wraps(TheirLlama.create_completion, assigned=())
    def create_completion(self, *args: Any, **options: Any) -> Any:
        """Completes `prompt` (text, or token ids used unchanged). Returns a dict, or with `stream` an
        iterator of dicts.

        Arguments and defaults are llama_cpp's. With `max_tokens` None or <= 0, the text ends at the latest
        when the context is full. `stopping_criteria(input_ids, logits)` is called after each token with empty
        `logits`, which stay in native code. `logits_processor` needs every logit, so the plain twin decodes
        without drafts. Raises `ContextFullError` (a `ValueError`) if the prompt does not fit;
        `UnsupportedError` for `suffix` if the file has no infill tokens, for `tfs_z`, and for `echo` with
        `logprobs`.
        """
        given = _given(TheirLlama.create_completion, self, *args, **options)
        asked = SimpleNamespace(**given)
        if asked.logits_processor:
            self._twin_is_ahead = True
            return self._plain.create_completion(**given)
        if asked.echo and asked.logprobs is not None:
            refuse("echo together with logprobs", "log-probabilities of the prompt are not computed")
        stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or ()
        sampling = self._sampling(
            given,
            max_tokens=max(asked.max_tokens or -1, -1),
            seed=self._next_seed(asked.seed),
            stop=tuple(filter(None, stop)),
            logit_bias=tuple((int(token), bias) for token, bias in (asked.logit_bias or {}).items()),
            n_probs=0 if asked.logprobs is None else max(asked.logprobs, 1),
        )
        text = asked.prompt if isinstance(asked.prompt, str) else self.engine.detokenize(asked.prompt)
        if asked.suffix is None:
            tokens = self.engine.prompt_tokens(asked.prompt)
        else:
            tokens = Infill(text, asked.suffix, suffix_first=self.spm_infill).tokens(self.engine.vocabulary)
        if len(tokens) >= self.engine.n_ctx:  # other programs search for llama_cpp's text of this error
            raise ContextFullError(
                f"Requested tokens ({len(tokens)}) exceed context window of {self.engine.n_ctx}"
            )
        running = self.engine.stream(
            tokens,
            sampling=sampling,
            grammar=asked.grammar,
            stop_when=_criterion(asked.stopping_criteria, tokens),
            utf8_errors="ignore",
        )
        reply = {"id": f"cmpl-{uuid.uuid4()}", "object": "text_completion", "created": int(time.time())}
        reply["model"] = asked.model or self.model_path
        shown = text if asked.echo else ""
        lists = LogprobLists(self._text_of, self.engine.token_to_piece, len(text), "ignore")
        if asked.stream:
            return self._chunks(running, reply, shown, lists, asked.logprobs)
        return self._result(running.finish(), reply, shown, lists, asked.logprobs)

    # Without this annotation, type checkers would use llama_cpp's declaration.
    __call__: Completes = create_completion

    def _create_completion(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Completes a prompt. Returns an iterator both with and without `stream`, as in llama_cpp."""
        result = self.create_completion(*args, **options)
        if isinstance(result, dict):
            yield result
        else:
            yield from result

    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Any
    ) -> ChatCompleted: ...
    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Literal[True], **options: Any
    ) -> Iterator[ChatPart]: ...
    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: bool, **options: Any
    ) -> ChatCompleted | Iterator[ChatPart]: ...
    def create_chat_completion(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        response_format: Mapping[str, Any] | None = None,
        grammar: Any = None,
        **options: Any,
    ) -> Any:
        """Answers `messages` through the chat format. Returns a dict, or with `stream` an iterator of dicts.

        llama_cpp's own handlers do the formatting, tools and functions, so all of llama_cpp's arguments and
        defaults apply (for example temperature 0.2). `response_format` takes json_object and, unlike
        llama_cpp's, also json_schema.
        """
        for name in options:
            if name not in _CHAT_ARGUMENTS:
                raise TypeError(f"create_chat_completion() got an unexpected keyword argument {name!r}")
        result = (self.chat_handler or self._chat_handler)(
            llama=self,
            messages=messages,
            stream=stream,
            grammar=resolve_grammar(grammar, None, response_format),
            **{"repeat_penalty": 1.0, **options},
        )
        if options.get("logits_processor"):  # llama_cpp itself answers this request and reports no timings
            return result
        if stream:
            return self._with_timings(result)
        return {**result, "timings": self._timings}

    @functools.wraps(TheirLlama.generate, assigned=())
    def generate(self, *args: Any, **options: Any) -> Iterator[int]:
        """Yields token ids that continue `tokens`, and ends after the end-of-generation token. Arguments and
        defaults are llama_cpp's.
        """
        given = _given(TheirLlama.generate, self, *args, **options)
        asked = SimpleNamespace(**given)
        if not asked.reset:
            refuse("generate(reset=False)", "pass all tokens; a common prefix is reused automatically")
        if asked.logits_processor:
            self._twin_is_ahead = True
            yield from self._plain.generate(**given)
            return
        sampling = self._sampling(given, seed=self._seed)
        criterion = _criterion(asked.stopping_criteria, asked.tokens)
        with self.engine.stream(
            asked.tokens, sampling=sampling, grammar=asked.grammar, stop_when=criterion
        ) as running:
            for chunk in running:
                yield from chunk.tokens

    # Saving and loading the state

    def reset(self) -> None:
        """Forgets the last prompt, so that the next prompt reuses nothing."""
        self._twin_is_ahead = False
        self.engine.clear()
        if "_plain" in self.__dict__:
            self._plain.reset()

    def close(self) -> None:
        """Frees the model."""
        # A failed constructor leaves no engine. The twin is opened at its first use.
        for name in self.__dict__.keys() & {"_plain", "engine"}:
            getattr(self, name).close()

    def __getstate__(self) -> dict[str, Any]:
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc] # like llama_cpp's own unpickling

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            self.close()

    def set_cache(self, cache: Any) -> None:
        """Accepts only None, because the last conversation is reused without a cache object."""
        if cache is not None:
            refuse("set_cache", "the prefix of the last conversation is reused automatically")

    def save_state(self, *state: Any) -> NoReturn:
        """Raises UnsupportedError, because the caches of target and drafter cannot be saved together."""
        refuse("save_state and load_state", "prompt_cache of eaglecpp.Engine keeps long prompts in files")

    load_state = save_state

    # Computing embeddings

    @overload
    def embed(
        self, input: str, normalize: bool = ..., truncate: bool = ..., return_count: Literal[False] = ...
    ) -> Vectors: ...
    @overload
    def embed(
        self,
        input: list[str],
        normalize: bool = ...,
        truncate: bool = ...,
        return_count: Literal[False] = ...,
    ) -> list[Vectors]: ...
    @overload
    def embed(
        self, input: Texts, normalize: bool = ..., truncate: bool = ..., *, return_count: Literal[True]
    ) -> tuple[Any, int]: ...
    def embed(
        self, input: Texts, normalize: bool = False, truncate: bool = True, return_count: bool = False
    ) -> Any:
        """Returns the vector of a text, or the vectors of a list of texts. Without pooling, which is
        llama_cpp's default for a generative model, each token has a vector. return_count: return the pair of
        this result and the number of tokens.
        """
        embeddings = self.engine.embedder.embed(
            [input] if isinstance(input, str) else input,
            pooling=self._pooling,
            normalize=normalize,
            truncate=truncate,
            n_ctx=self.n_batch,
            special=False,
        )
        vectors = [embedding.vector.tolist() for embedding in embeddings]
        out = vectors[0] if isinstance(input, str) else vectors
        return (out, sum(embedding.n_tokens for embedding in embeddings)) if return_count else out

    @property
    def _pooling(self) -> str:
        number = int(self._given.get("pooling_type", -1))
        if number < 0:
            number = int(self.metadata.get(f"{self.metadata['general.architecture']}.pooling_type", 0))
        return _POOLINGS[number] if number < len(_POOLINGS) else ""  # the engine refuses an empty pooling

    def pooling_type(self) -> int:
        """Returns llama.cpp's number for the pooling type."""
        return _POOLINGS.index(self._pooling)

    # Private methods

    def _sampling(self, given: Mapping[str, Any], **rest: Any) -> SamplingOptions:
        """Returns the sampling options of a call that drafts. given: llama_cpp's arguments; rest: options
        that llama_cpp names or counts differently. Raises UnsupportedError for `tfs_z`.
        """
        self._twin_is_ahead = False
        if given["tfs_z"] != 1.0:
            refuse("tfs_z", "llama.cpp no longer has tail-free sampling (llama_cpp ignores it)")
        temperature = given["temp"] if "temp" in given else given["temperature"]
        own = {
            "rng": self._rng,
            "top_k": max(given["top_k"], 0),
            "repeat_last_n": self.last_n_tokens_size,
            "mirostat": given["mirostat_mode"],
            # llama_cpp samples with mirostat instead of a temperature.
            "temperature": 1.0 if given["mirostat_mode"] and temperature > 0 else temperature,
            "grammar": "",  # an empty text, because the generation converts the grammar later
        }
        return SamplingOptions(**(_same_names(SamplingOptions, given) | own | rest))

    def _next_seed(self, seed: int | None) -> int:
        """Returns the seed of a call, derived as in llama_cpp. If `seed` is not given, the result follows
        from the seed of the previous call. With -1, each call draws a random seed.
        """
        if seed in (-1, _DEFAULT_SEED) or (seed is None and self._seed == -1):
            return -1
        self._seed = seed if seed is not None else random.Random(self._seed).randint(0, 2**32)
        return SamplingOptions.fixed_seed(self._seed)

    def _text_of(self, token: int) -> str:
        return self.engine.token_to_piece(token).decode("utf-8", "ignore")

    def _shape(self, entries: Sequence[TokenLogprob], lists: LogprobLists, n_top: int | None) -> Any:
        is_eog = self.engine.native.is_eog
        return lists.of([entry for entry in entries if not is_eog(entry.token)], n_top) if entries else None

    def _result(
        self, result: Completion, reply: dict[str, Any], shown: str, lists: LogprobLists, n_top: int | None
    ) -> dict[str, Any]:
        tokens, self._timings = result.tokens, result.timings.as_dict()
        ended = result.finish_reason == "stop" and bool(tokens) and self.engine.native.is_eog(tokens[-1])
        n_prompt, n = len(result.prompt_tokens), len(tokens) - ended
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n}
        logprobs = self._shape(result.logprobs, lists, n_top)
        part = part_of(reply, shown + result.text, logprobs, result.finish_reason)
        return {**part, "usage": usage, "timings": self._timings}

    def _chunks(
        self, running: Stream, reply: dict[str, Any], shown: str, lists: LogprobLists, n_top: int | None
    ) -> Iterator[dict[str, Any]]:
        if shown:
            yield part_of(reply, shown)
        with running:
            for chunk in running:
                logprobs = self._shape(chunk.logprobs, lists, n_top)
                if chunk.text or logprobs:
                    yield part_of(reply, chunk.text, logprobs)
        result = running.completion()
        self._timings = result.timings.as_dict()
        yield {**part_of(reply, "", None, result.finish_reason), "timings": self._timings}

    def _with_timings(self, chunks: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for chunk in chunks:
            ended = chunk["choices"][0]["finish_reason"] is not None
            yield {**chunk, "timings": self._timings} if ended else chunk


def _given(method: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    """Returns the arguments of a call of llama_cpp's method by name, including llama_cpp's defaults. Raises
    TypeError if the call itself would.
    """
    try:
        bound = inspect.signature(method).bind(*args, **options)
    except TypeError as error:
        raise TypeError(f"{method.__name__}() {error}") from None
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name != "self"}


def _same_names(options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the given arguments whose llama_cpp name is also the name of an option."""
    return {option.name: given[option.name] for option in describe(options) if option.name in given}


_CHAT_ARGUMENTS = frozenset(inspect.signature(TheirLlama.create_chat_completion).parameters)


def _criterion(
    criteria: Callable[..., bool] | None, prompt: Sequence[int]
) -> Callable[[list[int]], bool] | None:
    """Adapts llama_cpp's `stopping_criteria(input_ids, logits)` to a test of the generated tokens."""
    if not criteria:
        return None
    no_logits = np.empty(0, dtype=np.single)
    return lambda tokens: bool(criteria(np.array([*prompt, *tokens], dtype=np.intc), no_logits))


def _one_match(names: Sequence[str], pattern: str, repo_id: str) -> str:
    found = fnmatch.filter(names, pattern)
    if len(found) != 1:
        raise ValueError(
            f"{len(found)} files of {repo_id} match {pattern!r}, expected one; its GGUF files: "
            f"{', '.join(fnmatch.filter(names, '*.gguf')) or 'none'}"
        )
    return found[0]


def _type_number(kind: int | str | None) -> int | None:
    """Returns ggml's number of a tensor type."""
    if isinstance(kind, str) and kind != "auto":
        return int(GGMLQuantizationType[kind.upper()])
    return kind if isinstance(kind, int) else None


def _type_name(kind: int | str | None) -> str:
    """Returns ggml's name of a tensor type, given as a number, a name, or None (the default)."""
    if isinstance(kind, int):
        return str(GGMLQuantizationType(kind).name).lower()
    return kind or "auto"
