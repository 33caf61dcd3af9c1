# SPDX-License-Identifier: MIT
"""`Engine`: a target, its drafter and their caches, to generate text from Python.

    with Engine.open("target.gguf", draft="draft.gguf", n_ctx=4096) as engine:
        engine.generate("def main():", max_tokens=64).text

The methods return `Completion`s and `Chunk`s. One thread at a time can use an engine; other threads get
`EngineBusyError`. This module raises and logs, and never prints.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast, overload
from weakref import WeakSet

from eaglecpp._extension import core
from eaglecpp.chat.message import Message
from eaglecpp.chat.template import ChatTemplate
from eaglecpp.engine.embedding import Embedder, EmbedKeywords
from eaglecpp.engine.exactness import Exactness, measure
from eaglecpp.engine.loading import load
from eaglecpp.engine.native import NativeSequence, Unique
from eaglecpp.engine.request import GenerationRequest, ResolvedRequest
from eaglecpp.engine.scheduler import Scheduler
from eaglecpp.engine.session import MessageList, Session, Talking
from eaglecpp.engine.vocabulary import Prompt, Vocabulary
from eaglecpp.errors import EagleError, EngineBusyError, InvalidArgumentError, InvalidTypeError, MismatchError
from eaglecpp.opening.plan import OpeningPlan, plan_opening
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy
from eaglecpp.results import Completion, Embedding, Timings

if TYPE_CHECKING:
    from eaglecpp.options.typed import ChatKeywords, OpenKeywords

_log = logging.getLogger("eaglecpp.engine")


class Engine(Unique, Talking):
    """A loaded target with an optional drafter. `open` loads both. Release the engine with `close()` or a
    `with` block.

    plan: the models and options to open, see `eaglecpp.opening`. The caller shows the plan's notices.
    """

    def __init__(self, plan: OpeningPlan) -> None:
        if not isinstance(plan, OpeningPlan):
            raise InvalidTypeError(
                f"Engine: expected an OpeningPlan, found {type(plan).__name__}; to open a model use "
                "Engine.open(target, draft=...)"
            )
        self.plan = plan
        self.target_path, self.draft_path = plan.target, plan.draft
        self.model, self.sampling = plan.model_options(), plan.sampling_options()
        self.strategy: Strategy = plan.strategy.value
        self.timings = Timings()
        # a weak set, because a garbage-collected session counts as closed
        self.sequences: WeakSet[NativeSequence] = WeakSet()
        self._main: Session | None = None
        # Milliseconds that the generations so far allow for measuring exactness: a tenth of their time.
        self._measuring_ms = 0.0
        self._opening = threading.Lock()  # guards `default_session`, because several threads may call it
        self._native, self.shared = load(plan, self._count)
        self.shared.after_answer = self.measure_for_its_share
        self.embedder = Embedder(self._native, self.shared.vocabulary)

    @classmethod
    def open(
        cls,
        target: str | os.PathLike[str],
        draft: str | os.PathLike[str] | Literal[False] | None = None,
        *,
        strategy: str | Strategy | None = None,
        model: ModelOptions | None = None,
        drafting: DraftOptions | None = None,
        sampling: SamplingOptions | None = None,
        **options: Unpack[OpenKeywords],
    ) -> Self:
        """Loads a target, and a drafter if the target has one or `draft` names one.

        target, draft: paths of GGUF files, or references to models on this machine. `draft="text"` drafts
        from the text itself, without a drafter (for a file named "text" write `./text`). False, "off" or
        "none" disable drafting, as strategy "off" does. strategy: "auto" (the default), "off", "chain:5",
        "tree:k=4,depth=5,nodes=16". options: any field of `ModelOptions`, `DraftOptions` or
        `SamplingOptions`, instead of or in addition to option objects. Sampling options are the defaults for
        each generation.

        A model given by name brings its drafter (unless `strategy` is "off"), its adapters, its parameters
        and strategy as defaults, and for `chat` its template, system prompt and messages. Arguments override
        these settings. An option object overrides all parameters of its class.

        Raises `ModelNotFoundError`, `GgufError`, `MismatchError` (the drafter does not fit),
        `UnsupportedError`, `OutOfMemoryError`, `VersionError`; `TypeError`/`ValueError` for a wrong option.
        """
        objects = (model, drafting, sampling)
        plan = plan_opening(target, draft, strategy=strategy, options=options, objects=objects)
        for notice in plan.notices:
            _log.warning("%s", notice)
        return cls(plan)

    # Methods that generate text. `Talking` has the methods for the default conversation.

    def generate_many(
        self, prompts: Sequence[Prompt | MessageList], **options: Unpack[ChatKeywords]
    ) -> list[Completion]:
        """Completes prompts and answers conversations (lists of messages) concurrently, in the engine's free
        slots (at most `n_sequences`). The results are in the order of the prompts. Each result is the same as
        from a single call. Takes the options of `generate` and `chat`.

        Checks all prompts before the first prompt runs. The error for an invalid prompt names the index of
        the prompt.
        """
        if isinstance(prompts, str | bytes):
            raise InvalidTypeError(f"expected a list of prompts, found {type(prompts).__name__}")
        requests = [self._resolved(index, prompt, options) for index, prompt in enumerate(prompts)]
        sessions, scheduler = [self.default_session], Scheduler()
        try:
            sessions += [self.session() for _ in range(min(self.n_free, len(requests) - 1))]
            scheduler.open(self.shared, [session.slot for session in sessions])
            streams = scheduler.run(requests)
            self.measure_for_its_share()
            return [stream.completion() for stream in streams]
        finally:
            scheduler.close()
            for session in sessions[1:]:
                session.close()

    @overload
    def embed(  # type: ignore[overload-overlap] # a str is also a sequence of str: the first overload wins
        self, texts: Prompt, **options: Unpack[EmbedKeywords]
    ) -> Embedding: ...
    @overload
    def embed(self, texts: Sequence[Prompt], **options: Unpack[EmbedKeywords]) -> list[Embedding]: ...
    def embed(
        self, texts: Prompt | Sequence[Prompt], **options: Unpack[EmbedKeywords]
    ) -> Embedding | list[Embedding]:
        """Returns the vector of a text (str, bytes or token ids), or the vectors of a list of texts. The
        model may be an embedding model or a generative model. The method uses the loaded weights and a
        separate context, so conversations keep their caches.

        dimensions: number of values to keep, for models trained for truncated vectors. truncate: cut a text
        that exceeds the context; False raises `ContextFullError`. normalize: scale vectors to length 1.
        pooling: how the vectors of a text's tokens are combined: "mean", "cls" (the first), "last", or "none"
        to return one vector per token; the default is the file's setting, or the mean.

        Raises `UnsupportedError` for a reranker, `ValueError` for an empty text or invalid dimensions,
        `OutOfMemoryError`.
        """
        # A list of integers is one text, given as token ids. An empty list contains no texts.
        if isinstance(texts, list | tuple) and not (texts and hasattr(texts[0], "__index__")):
            return self.embedder.embed(texts, **options)
        return self.embedder.embed([cast("Prompt", texts)], **options)[0]

    def session(self) -> Session:
        """Opens a separate conversation. Close the session after use, or use it as a context manager.

        Raises `EngineBusyError` if `n_sequences` conversations are open already.
        """
        if self._n_open >= self.model.n_sequences:
            raise EngineBusyError(
                f"all {self.model.n_sequences} conversations of this engine are open; close a conversation, "
                f"or open the engine with n_sequences={self._n_open + 1}"
            )
        session = Session(self.shared)
        self.sequences.add(session.slot)
        return session

    def measure_exactness(self, go_on: Callable[[], bool] = lambda: True) -> Exactness:
        """Measures the exact batch sizes that opening had no time for. Conversations keep their caches.

        go_on: called before each step of the target; False ends the measurement, which a later call
        continues. Raises `EngineBusyError` while a conversation generates.
        """
        if not self.exactness.is_complete:
            with self._native.exclusive() as native:
                self.shared.exactness = measure(native, lambda: go_on() and not self._native.is_wanted)
        return self.exactness

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Runs `measure_exactness` in a thread while the `with` block runs, for example while a user types.
        The block must not use the engine. Its end waits for the running step.
        """
        is_over = threading.Event()
        with ThreadPoolExecutor(1, "eaglecpp-pause") as pool, contextlib.ExitStack() as end:
            end.callback(is_over.set)
            # If an error breaks the engine, the next use of the engine raises it again.
            pool.submit(self.measure_exactness, lambda: not is_over.is_set())
            yield

    # Methods for text and tokens

    def tokenize(self, text: str | bytes, *, add_bos: bool = True, special: bool = True) -> list[int]:
        """Returns the token ids of `text`. `add_bos`: add a BOS token if the model wants a BOS token and the
        text does not begin with one. `special`: parse the text of special tokens.
        """
        return self.shared.vocabulary.tokenize(text, add_bos=add_bos, special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Returns the text of token ids; `special`: show special tokens. Bytes that are not UTF-8 become
        U+FFFD.
        """
        return self.shared.vocabulary.detokenize(tokens, special=special)

    def token_to_piece(self, token: int, *, special: bool = False) -> bytes:
        """Returns the bytes of one token. A special token has no bytes unless `special` is true."""
        return self.shared.vocabulary.token_to_piece(token, special=special)

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """Returns the token ids of a prompt, see `Session.stream`. Raises `ValueError` for an empty
        prompt.
        """
        return self.shared.vocabulary.prompt_tokens(prompt)

    def chat_prompt(
        self,
        messages: Sequence[Any],
        *,
        template: str | ChatTemplate | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
    ) -> list[int]:
        """Returns the token ids of a rendered conversation, ready for `generate`.

        `messages`: {"role", "content"} dicts or `eaglecpp.chat.message.Message`. The prompt begins with a
            stored model's system prompt, unless `messages` begins with a system message, and with the stored
            model's own messages. Parts that the template ignores are placed in a field that the template
            prints (docs/templates.md). `template`: text in Jinja or Go, or a `ChatTemplate`, instead of the
            model's template. `tools`, `think`: passed to the template. Raises `UnsupportedError` without any
            template, `TemplateError` if the template fails.
        """
        options = {"template": template, "tools": tools, "think": think}
        return self.shared.resolve(GenerationRequest.of(options, messages=messages)).prompt.tokens

    # Facts about the engine and its models

    def __repr__(self) -> str:
        if self.closed:
            return f"<Engine of {self.target_path.name}, closed>"
        draft = "drafts from the text" if self.has_draft else "no drafter"
        if self.draft_path is not None:
            draft = f"drafter {self.draft_path.name}"
        return f"<Engine of {self.target_path.name}, {draft}, strategy {self.strategy}, context {self.n_ctx}>"

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._native.closed

    @property
    def _n_open(self) -> int:
        return sum(not sequence.closed for sequence in self.sequences)

    @property
    def n_free(self) -> int:
        """Number of conversations that can still be opened."""
        return 0 if self.only_embeds else self.model.n_sequences - self._n_open

    @property
    def only_embeds(self) -> bool:
        """True for an embedding model, which generates nothing."""
        return self.native.only_embeds

    @property
    def has_draft(self) -> bool:
        """True if drafts are possible, from a drafter or from the text itself."""
        return self.shared.has_draft

    @property
    def has_chat_template(self) -> bool:
        """True if the target's file has a chat template."""
        return bool(self.native.chat_template())

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's tokenizer, for code that needs no engine."""
        return self.shared.vocabulary

    @property
    def chat_template(self) -> ChatTemplate:
        """The chat template that `chat` uses. Its `describe()` says why this template was chosen. For a model
        without any template, the result renders the bare prompt.
        """
        return self.shared.chat.template

    @property
    def n_ctx(self) -> int:
        """Context length in tokens."""
        return self.native.n_ctx

    @property
    def n_vocab(self) -> int:
        """Size of the target's vocabulary."""
        return self.native.n_vocab

    @property
    def metadata(self) -> dict[str, str]:
        """Key-value pairs of the target's GGUF, scalars only, as text."""
        return self.native.metadata()

    @property
    def draft_info(self) -> dict[str, Any] | None:
        """Facts from the drafter's file; None without a drafter."""
        return self.native.draft_info()

    @property
    def chains_only(self) -> str:
        """Reason why this target supports only draft chains; "" if the target supports draft trees, or is not
        loaded yet.
        """
        return self._native.chains_only

    @property
    def exactness(self) -> Exactness:
        """The batch sizes at which each token's result has the same bits as in target-only decoding. They are
        measured only with a drafter. `is_complete` is False while `measure_exactness` has sizes to measure.
        """
        return self.shared.exactness

    @property
    def device_info(self) -> dict[str, Any]:
        """The devices of the target and the drafter, and the method of extracting hidden states."""
        return self.native.device_info()

    @property
    def memory_plan(self) -> list[dict[str, Any]]:
        """Memory of each device in bytes. `target_weights`, `target_cache` and `target_compute` are the
        target's, the keys with `draft_` are the drafter's. `total` and `free` are the device's.
        """
        return self.native.memory_plan()

    @property
    def native(self) -> core.Engine:
        """The extension's engine, for functions that `Engine` lacks. Calls of the extension's methods bypass
        the check that only one thread uses the engine at a time.
        """
        return self._native.get()

    # Closing the engine, and private methods

    def close(self) -> None:
        """Frees weights and caches. A second call does nothing. Any other use of a closed engine raises
        `InvalidStateError`.
        """
        prompts = self.shared.prompts
        if prompts is not None and not self.closed:
            for sequence in [sequence for sequence in self.sequences if not sequence.closed]:
                prompts.flush()
                prompts.keep(sequence, at_last=True)
        cache = self.shared.cache
        self._native.close(lambda native: cache.save(native, is_last=True) if cache else None)
        for owned in (self.embedder, prompts, self.shared.vocabulary.projector):
            if owned is not None:
                owned.close()
        self.sequences.clear()
        self._main = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a failed constructor leaves an incomplete engine
            self.close()

    def resolve(self, strategy: Strategy) -> tuple[Strategy, str]:
        """Returns the strategy that will run, and the reason. If the target cannot verify trees, a tree
        becomes a chain of the same depth. Without a drafter, a fixed strategy raises `ValueError`.
        """
        return self.shared.resolve_strategy(strategy)

    def _resolved(self, index: int, prompt: Any, options: Mapping[str, Any]) -> ResolvedRequest:
        """Resolves one of many requests. Raises the errors that starting this request would raise."""
        try:
            is_chat = isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping | Message)
            what = {"messages" if is_chat else "prompt": prompt}
            return self.shared.resolve(GenerationRequest.of(options, **what))
        except InvalidArgumentError as error:
            raise type(error)(f"prompt {index} of the list: {error}") from None

    def _count(self, timings: Timings, temperature: float) -> None:
        """Adds the counters of a finished generation."""
        self.timings = self.timings + timings
        self.shared.gains.add(timings, temperature)
        if self.shared.cache is not None:
            with contextlib.suppress(EngineBusyError), self._native.exclusive() as native:
                self.shared.cache.save(native)
        self._measuring_ms += (timings.prompt_ms + timings.predicted_ms) / 10

    def measure_for_its_share(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Continues `measure_exactness` for some steps, if `_measuring_ms` suffices for them. go_on: False
        ends the measurement. Errors are left to the next use of the engine, because the answer is complete.
        """
        with contextlib.suppress(EagleError, MemoryError):
            start, steps = time.monotonic(), itertools.count()
            # A continued measurement first repeats the known rows, in the worst case one by one. Its steps
            # take about as long as rounds. The first measured step may take longer, to read the weights.
            n_steps = len(self.native.exact_state["alone"]) + 12
            if self._measuring_ms > n_steps * self.timings.predicted_ms / max(1, self.timings.rounds):
                self.measure_exactness(lambda: next(steps) < n_steps and go_on())
                self._measuring_ms -= (time.monotonic() - start) * 1000

    @property
    def default_session(self) -> Session:
        """The conversation that the engine's own methods use."""
        with self._opening:
            if self._main is None:
                self._main = self.session()
            return self._main


def open_fitting(plan: OpeningPlan) -> tuple[Engine, str]:
    """Opens a plan. If the model's own drafter does not fit the target, opens the plan without this drafter.
    Returns the engine, and a notice about an omitted drafter or "". Raises the same errors as `Engine.open`.
    """
    try:
        return Engine(plan), ""
    except MismatchError as error:
        if plan.files.names_draft:
            raise
        why = f"running without the drafter, because it does not fit: {error}"
    return Engine(plan.without_drafts()), why
