# SPDX-License-Identifier: MIT
"""`Engine`: a target, its drafter and their caches, to generate text from Python.

    with Engine.open("target.gguf", draft="draft.gguf", n_ctx=4096) as engine:
        engine.generate("def main():", max_tokens=64).text

Takes paths and options, returns `Completion` and `Chunk`. One thread can use it at a time; others get
`EngineBusyError`, or wait if it was opened with `wait=True`. Raises and logs, never prints.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard, overload

from eaglecpp._extension import core
from eaglecpp.engine.embedding import Embedder
from eaglecpp.engine.exactness import Exactness
from eaglecpp.engine.infill import Infill
from eaglecpp.engine.loading import CancelFlag, load
from eaglecpp.engine.many import ManyStreams
from eaglecpp.engine.native import NativeEngine
from eaglecpp.engine.request import Answering, Request, Shared, make_request
from eaglecpp.engine.session import MessageList, Session
from eaglecpp.engine.stream import Stream
from eaglecpp.engine.vocabulary import Prompt, Vocabulary
from eaglecpp.errors import (
    ContextFullError,
    EngineBusyError,
    InvalidArgumentError,
    InvalidStateError,
    InvalidTypeError,
    OutOfMemoryError,
    UnsupportedError,
)
from eaglecpp.learning import Learning
from eaglecpp.opening.context import free_memory, memory_needed
from eaglecpp.opening.plan import OpeningPlan, plan_opening
from eaglecpp.options import MAX_SEQUENCES, DraftOptions, ModelOptions, SamplingOptions, Strategy
from eaglecpp.references.reference import hub_text
from eaglecpp.results import Completion, Embedding, Score, Timings
from eaglecpp.store.errors import Report, silent

if TYPE_CHECKING:
    from typing import Unpack

    from eaglecpp.chat.template import ChatTemplate
    from eaglecpp.options.typed import ChatKeywords, GenerateKeywords, OpenKeywords

__all__ = ["Engine"]

_log = logging.getLogger("eaglecpp.engine")
_MOST_BESIDE = 8  # prompts of a list that run at once in an engine that was opened for one conversation
_LEAST_BESIDE = 192  # tokens of all answers from which on that is worth another context and drafter
_SHARE_BESIDE = 4  # of the free memory, one part is the most that their caches may take


class Engine:
    """A loaded target with an optional drafter, made by `open` or `from_pretrained`. Release it with `close`
    or `with`.

    plan: what is opened, see `eaglecpp.opening`; whoever makes one shows its notices. wait: calls from
    several threads wait for each other instead of raising `EngineBusyError`.
    """

    def __init__(self, plan: OpeningPlan, *, wait: bool = False, cancel: CancelFlag | None = None) -> None:
        self._native: NativeEngine | None = None  # for `close`, if anything below fails
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
        self._sessions: list[Session] = []
        self._main: Session | None = None
        loaded = load(plan, waits=wait, count=self._count, cancel=cancel)
        self.drafting = loaded.drafting
        self._native, self._shared, self._cache = loaded.native, loaded.shared, loaded.cache
        self._embedder = Embedder(self._native, self._shared.vocabulary)

    @classmethod
    def open(
        cls,
        target: str | os.PathLike[str],
        draft: str | os.PathLike[str] | None = None,
        *,
        strategy: str | Strategy | None = None,
        model: ModelOptions | None = None,
        drafting: DraftOptions | None = None,
        sampling: SamplingOptions | None = None,
        wait: bool = False,
        cancel: CancelFlag | None = None,
        **options: Unpack[OpenKeywords],
    ) -> Self:
        """Loads a target and, if there is one, its drafter.

        target, draft: paths of GGUF files, or references of models on this machine. `draft="text"`: no
        drafter, drafts from the text itself (for a file of that name write `./text`). strategy: "auto" (the
        default), "off", "chain:5", "tree:k=4,depth=5,nodes=16". options: any field of `ModelOptions`,
        `DraftOptions` or `SamplingOptions` (the last are defaults for each generation); option objects may be
        given instead or in addition. wait: calls from several threads wait for each other instead of raising
        `EngineBusyError`. cancel: its `set()`, in another thread, ends the loading: `OpeningCancelledError`.

        A model given by name brings its drafter (unless `strategy` is "off"), its adapters, its parameters
        and strategy as defaults, and for `chat` its template, system prompt and messages. Arguments override
        these; an option object overrides all parameters of its kind.

        Raises `ModelNotFoundError`, `GgufError`, `MismatchError` (the drafter does not fit),
        `UnsupportedError`, `OutOfMemoryError`, `VersionError`; `TypeError`/`ValueError` for a wrong option.
        """
        objects = (model, drafting, sampling)
        plan = plan_opening(target, draft, strategy=strategy, options=options, objects=objects)
        return cls._noted(plan, wait, cancel)

    @classmethod
    def from_pretrained(
        cls,
        reference: str,
        *,
        quant: str = "",
        draft: str | os.PathLike[str] | None = None,
        strategy: str | Strategy | None = None,
        report: Report = silent,
        wait: bool = False,
        **options: Unpack[OpenKeywords],
    ) -> Self:
        """Opens a model from the Hugging Face Hub, and downloads it if it is not on this machine.

        reference: "owner/name" on the Hub; a tag or `quant` chooses the file ("Q4_K_M" by default)
        draft:     "auto" for the repository's own drafter or a known one, or a drafter's reference; it is
                   downloaded and, if it is a checkpoint, converted once
        report:    called for every step, see `eaglecpp.store.Status`
        Raises `DownloadError`, `ModelNotFoundError`, and what `open` raises.
        """
        from eaglecpp.opening.fetch import fetch

        text = hub_text(reference) + (f":{quant}" if quant else "")
        find = partial(fetch, report=report)
        return cls._noted(plan_opening(text, draft, strategy=strategy, options=options, find=find), wait)

    @classmethod
    def _noted(cls, plan: OpeningPlan, wait: bool, cancel: CancelFlag | None = None) -> Self:
        for notice in plan.notices:
            _log.warning("%s", notice)
        return cls(plan, wait=wait, cancel=cancel)

    # Generating: the default conversation. `Session` documents the arguments.

    @overload  # a str is a sequence of str, too: the first one that matches counts
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, **options: Unpack[GenerateKeywords]
    ) -> Completion: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], **options: Unpack[GenerateKeywords]) -> list[Completion]: ...
    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateKeywords]
    ) -> Completion | list[Completion]:
        """Completes `prompt` (str, bytes or token ids) and returns the result; arguments as
        `Session.stream`.

        A list of prompts is completed side by side: in as many conversations as are free, and in an engine
        that was opened for one (`n_sequences`) in places made for them, as far as memory allows. The results
        are in the order of the prompts. All are checked before the first one runs, and an error of the check
        names the index of its prompt.
        """
        if _is_many(prompt):
            return self._many(prompt, "stream", dict(options)).finish()
        return self.default_session.generate(prompt, **options)  # type: ignore[arg-type]

    @overload
    def stream(  # type: ignore[overload-overlap]
        self, prompt: Prompt, **options: Unpack[GenerateKeywords]
    ) -> Stream: ...
    @overload
    def stream(self, prompt: Sequence[Prompt], **options: Unpack[GenerateKeywords]) -> ManyStreams: ...
    def stream(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateKeywords]
    ) -> Stream | ManyStreams:
        """Completes `prompt`, one `Chunk` per round; arguments as `Session.stream`. For a list of prompts it
        yields (index, chunk), see `generate`.
        """
        if _is_many(prompt):
            return self._many(prompt, "stream", dict(options))
        return self.default_session.stream(prompt, **options)  # type: ignore[arg-type]

    @overload
    def chat(
        self, messages: MessageList, *, stream: Literal[False] = False, **options: Unpack[ChatKeywords]
    ) -> Completion: ...
    @overload
    def chat(
        self, messages: MessageList, *, stream: Literal[True], **options: Unpack[ChatKeywords]
    ) -> Stream: ...
    @overload
    def chat(
        self,
        messages: Sequence[MessageList],
        *,
        stream: Literal[False] = False,
        **options: Unpack[ChatKeywords],
    ) -> list[Completion]: ...
    @overload
    def chat(
        self, messages: Sequence[MessageList], *, stream: Literal[True], **options: Unpack[ChatKeywords]
    ) -> ManyStreams: ...
    def chat(
        self,
        messages: MessageList | Sequence[MessageList],
        *,
        stream: bool = False,
        **options: Unpack[ChatKeywords],
    ) -> Completion | Stream | list[Completion] | ManyStreams:
        """Answers `messages` through the model's chat template; arguments as `Session.chat`. A list of
        conversations is answered side by side, see `generate`.
        """
        if isinstance(messages, list | tuple) and messages and isinstance(messages[0], list | tuple):
            many = self._many(messages, "chat", dict(options))
            return many if stream else many.finish()
        one: Any = messages
        return self.default_session.chat(one, stream=stream, **options)  # type: ignore[call-overload, no-any-return]

    def score(self, text: Prompt) -> Score:
        """The log-probability of each token of `text` (str, bytes or token ids) under the target, and its
        perplexity. The drafter and sampling options are not used. Uses the loaded weights, and a temporary
        cache, so that conversations keep theirs.

        Raises `ContextFullError` for a text longer than the context.
        """
        tokens = self.prompt_tokens(text)
        if len(tokens) > self.n_ctx:
            raise ContextFullError(
                f"{len(tokens)} tokens do not fit into the context of {self.n_ctx}; open the engine with a "
                "larger n_ctx, or score the text in pieces"
            )
        with self.exclusive() as native:
            return Score(tokens, native.score(tokens))

    @overload
    def embed(  # type: ignore[overload-overlap]
        self,
        texts: Prompt,
        *,
        dimensions: int | None = None,
        truncate: bool = True,
        normalize: bool = True,
        pooling: str | None = None,
    ) -> Embedding: ...
    @overload
    def embed(
        self,
        texts: Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate: bool = True,
        normalize: bool = True,
        pooling: str | None = None,
    ) -> list[Embedding]: ...
    def embed(
        self, texts: Prompt | Sequence[Prompt], *, pooling: str | None = None, **options: Any
    ) -> Embedding | list[Embedding]:
        """The vector of a text (str, bytes or token ids), or those of a list of texts, with any model: one
        that is made for it, which does nothing else, or one that generates. Uses the loaded weights and a
        context of its own, so that conversations keep theirs.

        dimensions: only so many values, for models that were trained for it. truncate: a text that is
        longer than the context is cut; False raises `ContextFullError`. normalize: to a length of 1.
        pooling: how the vectors of a text's tokens become one: "mean", "cls" (the first), "last", or "none"
        for all of them; the default is the file's, or the mean.

        Raises `UnsupportedError` for a reranker, `ValueError` for an empty text or other dimensions,
        `OutOfMemoryError`.
        """
        self._handle()
        if _is_many(texts):
            return self._embedder.embed(texts, pooling=pooling, **options)
        one: Any = texts
        return self._embedder.embed([one], pooling=pooling, **options)[0]

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """How well each document answers a query, as a reranker scores it: higher is better. What of a
        document does not fit into the context is left out.

        Raises `UnsupportedError` for a model whose file does not say that it is a reranker.
        """
        self._handle()
        return self._embedder.rerank(query, documents)[0]

    def session(self) -> Session:
        """Opens a separate conversation; close it, or use it as a context manager.

        Raises `EngineBusyError` if all `n_sequences` are open.
        """
        if len(self._sessions) >= self.model.n_sequences:
            raise EngineBusyError(
                f"all {self.model.n_sequences} conversations of this engine are open; close one, or open the "
                f"engine with n_sequences={len(self._sessions) + 1}"
            )
        session = Session(self._shared, self._drop)
        self._sessions.append(session)
        return session

    def clear(self) -> None:
        """Forgets the default conversation; the next prompt reuses nothing of it."""
        self.default_session.clear()

    # Text and tokens

    def tokenize(self, text: str | bytes, *, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of `text`. `add_bos`: begin with BOS if the model wants it and the text does not already
        begin with it. `special`: the text of a special token becomes that token.
        """
        return self._shared.vocabulary.tokenize(text, add_bos=add_bos, special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids; `special`: show special tokens. Bytes that are not UTF-8 become U+FFFD."""
        return self._shared.vocabulary.detokenize(tokens, special=special)

    def token_to_piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token; empty for a special token unless `special`."""
        return self._shared.vocabulary.token_to_piece(token, special=special)

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt, see `Session.stream`. Raises `ValueError` for an empty one."""
        return self._shared.vocabulary.prompt_tokens(prompt)

    def infill_prompt(
        self,
        prefix: str,
        suffix: str,
        *,
        extra: Sequence[tuple[str, str]] | None = None,
        suffix_first: bool = False,
        n_most: int = 0,
    ) -> list[int]:
        """The token ids of a prompt whose answer goes between two texts, ready for `generate`.

        Made by a model's Go template that knows `.Suffix`, else by the infill tokens of the target's file.
        `extra`: (name, text) of other files that may help, most important last; these and `suffix_first`, the
        order that Codestral was trained on, need the file's tokens. `n_most`: what is farthest from the gap
        is left out beyond so many tokens, other files first; 0 = `ContextFullError` where it does not fit.
        Raises `UnsupportedError` for a model that has neither such a template nor such tokens.
        """
        asked = Infill(prefix, suffix, extra, suffix_first=suffix_first)
        return self._shared.chat.infill(asked, n_most).tokens

    def chat_prompt(
        self,
        messages: Sequence[Any],
        *,
        template: str | ChatTemplate | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
    ) -> list[int]:
        """The token ids of a rendered conversation, ready for `generate`.

        `messages`: {"role", "content"} dicts or `eaglecpp.chat.message.Message`; those of a stored model go
        before them, and so does its system prompt, unless they begin with one; for a template that refuses
        system messages, one goes before the first question. `template`: text in Jinja or Go, or a
        `ChatTemplate`, instead of the model's; `tools` and `think` are passed to it. Raises
        `UnsupportedError` without any template, `TemplateError` if it fails.
        """
        chat, of_prompt = self._shared.chat_with({"template": template, "tools": tools, "think": think})
        return chat.prompt(chat.conversation(messages).prompt(), **of_prompt).tokens

    # Facts

    def __repr__(self) -> str:
        if self.closed:
            return f"<Engine of {self.target_path.name}, closed>"
        draft = "drafts from the text" if self.has_draft else "no drafter"
        if self.draft_path is not None:
            draft = f"drafter {self.draft_path.name}"
        return f"<Engine of {self.target_path.name}, {draft}, strategy {self.strategy}, context {self.n_ctx}>"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None or self._native.closed

    @property
    def n_free(self) -> int:
        """How many conversations can still be opened."""
        return 0 if self.only_embeds else self.model.n_sequences - len(self._sessions)

    @property
    def only_embeds(self) -> bool:
        """Whether this is an embedding model, which generates nothing."""
        return self._handle().only_embeds

    @property
    def embedder(self) -> Embedder:
        """What `embed` and `rerank` stand on, for threads beside this one."""
        return self._embedder

    @property
    def learning(self) -> Learning | None:
        """Where its conversations are kept for the drafter to learn from; None = they are not."""
        return self._shared.learning

    @property
    def has_draft(self) -> bool:
        """Whether drafting is possible: with a drafter, or from the text itself."""
        return self._shared.drafting.has_draft

    @property
    def drafts_text(self) -> bool:
        """Whether `auto` also drafts from the text itself; without a drafter every strategy does."""
        return self.has_draft and self.drafting.text_drafts != "off"

    @property
    def has_chat_template(self) -> bool:
        """Whether the target's file has a chat template."""
        return bool(self._handle().chat_template())

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's tokenizer, for code that needs no engine."""
        return self._shared.vocabulary

    @property
    def chat_template(self) -> ChatTemplate:
        """The template that `chat` uses; its `describe()` says why. The bare prompt if there is none."""
        return self._shared.chat.template

    @property
    def n_ctx(self) -> int:
        """Context length in tokens."""
        return self._handle().n_ctx

    @property
    def n_tokens(self) -> int:
        """Tokens committed in the default conversation."""
        return len(self.default_session.tokens)

    @property
    def tokens(self) -> list[int]:
        """Tokens committed in the default conversation. All but the last have run."""
        return self.default_session.tokens

    @property
    def n_vocab(self) -> int:
        """Size of the target's vocabulary."""
        return self._handle().n_vocab

    @property
    def bos_text(self) -> bytes:
        """The text of the BOS token; empty if there is none."""
        return self._shared.vocabulary.bos_text

    @property
    def metadata(self) -> dict[str, str]:
        """Key-value pairs of the target's GGUF, scalars only, as text."""
        return self._handle().metadata()

    @property
    def draft_info(self) -> dict[str, Any] | None:
        """Facts from the drafter's file; None without a drafter."""
        return self._handle().draft_info()

    @property
    def chains_only(self) -> str:
        """Why this target supports only chains; "" if it supports trees, or is not loaded yet."""
        return "" if self._native is None else self._native.chains_only

    @property
    def exactness(self) -> Exactness:
        """Which batches give the same bits as plain decoding; measured only with a drafter, and on the CPU
        not if `exact` is off.
        """
        return self._shared.drafting.exactness

    @property
    def device_info(self) -> dict[str, Any]:
        """Where target and drafter run and how features are tapped."""
        return self._handle().device_info()

    @property
    def memory_plan(self) -> list[dict[str, Any]]:
        """Bytes that target and drafter use on each device: `target_weights`, `target_cache`,
        `target_compute`, the same with `draft_`, and how much of `total` is `free` now.
        """
        return self._handle().memory_plan()

    @property
    def shared(self) -> Shared:
        """What its conversations share; for code that makes its own, such as `AsyncEngine`."""
        return self._shared

    @property
    def native(self) -> core.Engine:
        """The extension's engine, for anything without a method here. Calls on it bypass the one-thread
        check.
        """
        return self._handle()

    # Life

    def close(self) -> None:
        """Frees weights and caches. A second call does nothing; any other use afterwards raises
        `InvalidStateError`.
        """
        if self._native is not None:
            self._native.close(self._save_planner)
            self._embedder.close()
            if self._shared.vocabulary.projector is not None:
                self._shared.vocabulary.projector.close()
            self._sessions.clear()
            self._main = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[core.Engine]:
        """Reserves the engine for native calls and forwards its log; `EngineBusyError` if a thread is using
        it. For anything without a method here.
        """
        if self._native is None:
            raise InvalidStateError("this engine is closed")
        with self._native.exclusive() as native:
            yield native

    def count(self, timings: Timings) -> None:
        """Adds the counters of a generation that ran through `exclusive` to `timings`."""
        self._count(timings)

    def resolve(self, strategy: Strategy) -> tuple[Strategy, str]:
        """The strategy that will run, and why. A tree becomes a chain of the same depth on a target that
        cannot verify trees; without a drafter a fixed strategy raises `ValueError`.
        """
        return self._shared.drafting.resolve(strategy)

    def _many(self, prompts: Sequence[Any], how: str, options: dict[str, Any]) -> ManyStreams:
        """Streams of many prompts. how: "stream" for prompts, "chat" for conversations."""
        checked = [self._check_one(index, prompt, how, options) for index, prompt in enumerate(prompts)]

        def begin(index: int, session: Session) -> Stream:
            one = checked[index]
            return session.begin(one) if isinstance(one, Request) else session.begin_answer(one)

        main = self.default_session
        own: list[Session] = []
        beside = self._beside(checked) if self.model.n_sequences == 1 else None
        if beside is None:
            own += [self.session() for _ in range(min(self.n_free, len(prompts) - 1))]
        else:
            shared, n_places = beside
            own += [Session(shared) for _ in range(n_places)]

        def close() -> None:
            for session in own:
                session.close()
            if beside is not None:
                beside[0].native.close(lambda native: None)

        return ManyStreams(own if beside is not None else [main, *own], len(prompts), begin, close)

    def _beside(self, checked: Sequence[Request | Answering]) -> tuple[Shared, int] | None:
        """Places for several generations at once, on the weights of this engine, and how many they are; None
        where there is no room for them. The default conversation stays as it is.
        """
        requests = [one if isinstance(one, Request) else one.request for one in checked]
        limits = [one.sampling.max_tokens for one in requests]
        n_most = [self.n_ctx if limit < 0 else limit for limit in limits]
        if len(requests) < 2 or sum(n_most) < _LEAST_BESIDE:
            return None
        n_longest = max(len(one.prompt) + n + 1 for one, n in zip(requests, n_most, strict=True))
        # no shorter than a slice of a prompt, so that prompts are read in the same slices
        n_ctx = min(self.n_ctx, max(n_longest, self.model.n_batch))
        n_ids = self._shared.drafting.n_leaves + 1
        n_places = min(len(requests), _MOST_BESIDE, MAX_SEQUENCES // n_ids)
        room = (free_memory() or 0) // _SHARE_BESIDE
        while n_places > 1:
            model = replace(self.model, n_ctx=n_ctx, n_sequences=n_places)
            if memory_needed(self.target_path, model, 0) <= room:
                break
            n_places -= 1
        if n_places < 2:
            return None
        try:
            return self._shared.beside(n_places, n_ctx), n_places
        except (OutOfMemoryError, UnsupportedError) as error:
            _log.info("prompts run one after another: %s", error)
            return None

    def _check_one(
        self, index: int, prompt: Any, how: str, options: Mapping[str, Any]
    ) -> Request | Answering:
        """One of many, ready to begin. Raises what beginning it would."""
        try:
            if how == "chat":
                return self._shared.chat_request(prompt, options)
            request = make_request(self._shared, prompt, **options)
            self._shared.vocabulary.check_fit(len(request.prompt))
        except InvalidArgumentError as error:
            raise type(error)(f"number {index} of the list: {error}") from None
        return request

    def _count(self, timings: Timings) -> None:
        """Adds the counters of a generation that has ended."""
        self.timings = self.timings + timings
        if self._cache is not None and self._native is not None:
            with contextlib.suppress(EngineBusyError), self._native.exclusive() as native:
                self._cache.save_now_and_then(native)

    def _save_planner(self, native: core.Engine) -> None:
        if self._cache is not None:
            self._cache.save(native)

    def _drop(self, session: Session) -> None:
        """Forgets a session that was closed."""
        self._sessions = [one for one in self._sessions if one is not session]

    @property
    def default_session(self) -> Session:
        """The conversation that the engine's own methods use."""
        if self._main is None:
            self._main = self.session()
        return self._main

    def _handle(self) -> core.Engine:
        if self._native is None:
            raise InvalidStateError("this engine is closed")
        return self._native.get()


def _is_many(prompt: Any) -> TypeGuard[Sequence[Prompt]]:
    """Whether this is a list of prompts, not one prompt as a list of token ids. An empty list is one of no
    prompts: a prompt has a token at least.
    """
    return isinstance(prompt, list | tuple) and not (prompt and hasattr(prompt[0], "__index__"))
