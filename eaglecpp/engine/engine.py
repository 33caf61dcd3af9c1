# SPDX-License-Identifier: MIT
"""`Engine`: a target, its drafter and their caches; the way to generate text from Python.

    with Engine.open("target.gguf", draft="draft.gguf", n_ctx=4096) as engine:
        engine.generate("def main():", max_tokens=64).text

Takes paths and options, gives `Completion` and `Chunk`. Used by one thread at a time, and says so with
`EngineBusyError` unless it is asked to wait. Raises and logs, never prints.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from eaglecpp._extension import core
from eaglecpp.engine.exactness import Exactness, settle
from eaglecpp.engine.params import engine_options
from eaglecpp.engine.planner_cache import PlannerCache
from eaglecpp.engine.session import Prompt, Session, Stream
from eaglecpp.errors import EngineBusyError, UnsupportedError
from eaglecpp.locate import find_model, find_stored
from eaglecpp.log import drain
from eaglecpp.options import TEXT, DraftOptions, ModelOptions, SamplingOptions, Strategy, split
from eaglecpp.results import Completion, Timings

if TYPE_CHECKING:
    from eaglecpp.chat.template import ChatTemplate
    from eaglecpp.store.resolve import ResolvedModel

__all__ = ["Engine", "Session", "Stream"]

_log = logging.getLogger("eaglecpp.engine")


class Engine:
    """A loaded target with an optional drafter. Make one with `Engine.open`, release it with `close` or
    `with`.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        draft: str | os.PathLike[str] | None = None,
        *,
        strategy: str | Strategy = "auto",
        model: ModelOptions | None = None,
        drafting: DraftOptions | None = None,
        sampling: SamplingOptions | None = None,
        wait: bool = False,
    ) -> None:
        self.waits = wait
        self._native: core.Engine | None = None
        self._holder: dict[str, int] = {}  # {"thread": ident} while one is inside, see `calling`
        self._sessions: list[Session] = []
        self._main: Session | None = None
        self._stored: ResolvedModel | None = None
        self._cache: PlannerCache | None = None
        self._exactness = Exactness()
        self.stats = Timings()
        self.target_path = find_model(target, "target")
        self.draft_path = None if draft in (None, TEXT) else find_model(draft, "drafter")
        self.model = model or ModelOptions()
        self.drafting = _with_text(drafting or DraftOptions(), draft)
        self.sampling = sampling or SamplingOptions()
        self.strategy = Strategy.parse(strategy)
        resolved, _ = self.resolve(self.strategy)
        _note_amx()
        self._connect_servers()
        options = engine_options(self.target_path, self.draft_path, self.model, self.drafting, resolved)
        try:
            self._native = core.Engine(options)
        finally:
            drain()
        if (possible := self.resolve(self.strategy))[0] != resolved:
            _log.warning("strategy %s %s", *possible)
        self._cache = self._planner_cache()
        self._exactness = self._settle_exactness()

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
        **options: Any,
    ) -> Self:
        """Loads `target` and, if given, `draft`: paths of GGUF files, or names of models on this machine.

        `draft="text"`: no drafter, drafts from the text itself (a file of that name is `./text`). `strategy`:
        "auto" (the default), "off", "chain:5", "tree:k=4,depth=5,nodes=16". `**options`: any
        field of `ModelOptions`, `DraftOptions` or `SamplingOptions` (the last are defaults for each
        generation); option objects may be given instead or as well. `wait`: calls from several threads wait
        for each other instead of raising `EngineBusyError`.

        A model by name comes whole: its drafter (unless `strategy` is "off"), adapters, parameters and
        strategy as defaults, and for `chat` its template, system prompt and messages. What is given here
        goes before that; an option object before all parameters of its kind.

        Raises `ModelNotFoundError`, `GgufError`, `MismatchError` (the drafter does not fit),
        `UnsupportedError`, `OutOfMemoryError`, `VersionError`; `TypeError`/`ValueError` for a wrong option.
        """
        parts = split(options, ModelOptions, DraftOptions, SamplingOptions)
        stored = find_stored(target)
        if stored is not None:
            for notice in stored.notices:
                _log.warning("%s", notice)
            own = stored.engine_options()
            of_model = own.pop("strategy", None)
            parts = _over_stored(parts, own, (model, drafting, sampling))
            target, draft, strategy = _whole(stored, draft, strategy, of_model)
        engine = cls(
            target,
            draft,
            strategy="auto" if strategy is None else strategy,
            model=replace(model or ModelOptions(), **parts[0]),
            drafting=replace(drafting or DraftOptions(), **parts[1]),
            sampling=replace(sampling or SamplingOptions(), **parts[2]),
            wait=wait,
        )
        engine._stored = stored
        return engine

    # Generating: the default conversation. `Session` documents the arguments.

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Completes `prompt` (str, bytes or token ids) and returns the result; arguments as
        `Session.stream`.
        """
        return self._session().generate(prompt, **options)

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Completes `prompt`, one `Chunk` per round; arguments as `Session.stream`."""
        return self._session().stream(prompt, **options)

    @overload
    def chat(
        self, messages: Sequence[Any], *, stream: Literal[False] = False, **options: Any
    ) -> Completion: ...
    @overload
    def chat(self, messages: Sequence[Any], *, stream: Literal[True], **options: Any) -> Stream: ...
    def chat(self, messages: Sequence[Any], *, stream: bool = False, **options: Any) -> Completion | Stream:
        """Answers `messages` through the model's chat template; arguments as `Session.chat`."""
        return self._session().answer(messages, stream, options)

    def session(self) -> Session:
        """Opens a conversation of its own beside the others; close it, or use it as a context manager.

        Raises `EngineBusyError` when all `n_sequences` are open.
        """
        if len(self._sessions) >= self.model.n_sequences:
            raise EngineBusyError(
                f"all {self.model.n_sequences} conversations of this engine are open; close one, or open the "
                f"engine with n_sequences={len(self._sessions) + 1}"
            )
        with self.calling() as native:
            session = Session(self, native.open_sequence())
        self._sessions.append(session)
        return session

    def clear(self) -> None:
        """Forgets the default conversation; nothing of it is reused by the next prompt."""
        self._session().clear()

    # Text and tokens

    def tokenize(self, text: str | bytes, *, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of `text`. `add_bos`: begin with BOS if the model wants it and the text does not begin
        with it already. `special`: the text of a special token becomes that token.
        """
        data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        add_special = add_bos and not (special and self.bos_text and data.startswith(self.bos_text))
        return self._handle().tokenize(data, add_special, special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids; `special`: show special tokens. Bytes that are not UTF-8 become U+FFFD."""
        return (
            self._handle().detokenize(self._checked_tokens(tokens), False, special).decode("utf-8", "replace")
        )

    def token_to_piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token; empty for a special token unless `special`."""
        return self._handle().token_to_piece(token, special)

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """The token ids a prompt stands for, see `Session.stream`. Raises `ValueError` for an empty one."""
        if isinstance(prompt, str | bytes):
            tokens = self.tokenize(prompt)
        elif isinstance(prompt, Mapping) or not hasattr(prompt, "__iter__"):
            raise TypeError(f"prompt must be str, bytes or a list of token ids, got {type(prompt).__name__}")
        else:
            tokens = self._checked_tokens(prompt)
        if not tokens:
            raise ValueError("the prompt is empty and the model has no BOS token to begin with")
        return tokens

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
        before them, its system prompt too unless they begin with one. `template`: Jinja text, or a
        `ChatTemplate`, in place of the model's; `tools` and `think` are handed to it. Raises
        `UnsupportedError` without any template, `TemplateError` if it fails.
        """
        if template is None:
            template = self._chat_template
        elif isinstance(template, str):
            template = self._parse_template(template)
        rendered = template.render(self._opened_by_model(messages), tools=tools, think=think)
        return self.tokenize(rendered.text, add_bos=not rendered.has_bos)

    # Facts

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    @property
    def n_free(self) -> int:
        """How many conversations can still be opened."""
        return self.model.n_sequences - len(self._sessions)

    @property
    def has_draft(self) -> bool:
        """Whether anything can be drafted: by a drafter, or from the text itself."""
        return self.draft_path is not None or self.drafting.text_drafts == "on"

    @property
    def drafts_text(self) -> bool:
        """Whether `auto` also drafts what stands in the text already; without a drafter every strategy
        does.
        """
        return self.has_draft and self.drafting.text_drafts != "off"

    @property
    def has_chat_template(self) -> bool:
        """Whether the target's file carries a chat template."""
        return bool(self._handle().chat_template())

    @property
    def n_ctx(self) -> int:
        """Context length in tokens."""
        return self._handle().n_ctx

    @property
    def n_tokens(self) -> int:
        """Tokens committed in the default conversation."""
        return len(self._session().tokens)

    @property
    def tokens(self) -> list[int]:
        """Tokens committed in the default conversation. All but the last have run."""
        return self._session().tokens

    @property
    def n_vocab(self) -> int:
        """Size of the target's vocabulary."""
        return self._handle().n_vocab

    @property
    def bos_text(self) -> bytes:
        """The text of the BOS token, empty without one."""
        bos = self._handle().bos
        return b"" if bos < 0 else self.token_to_piece(bos, special=True)

    @property
    def metadata(self) -> dict[str, str]:
        """Key-value pairs of the target's GGUF, scalars only, as text."""
        return self._handle().metadata()

    @property
    def draft_info(self) -> dict[str, Any] | None:
        """What the drafter's file says about it; None without a drafter."""
        return self._handle().draft_info()

    @property
    def chains_only(self) -> str:
        """Why this target takes chains only; "" when it takes trees, or is not loaded yet."""
        return "" if self._native is None else self._native.chains_only

    @property
    def exactness(self) -> Exactness:
        """In which batches the rows hold the bits of plain decoding; measured only with a drafter, and unless
        `exact` is off.
        """
        return self._exactness

    @property
    def device_info(self) -> dict[str, Any]:
        """Where target and drafter run and how features are tapped."""
        return self._handle().device_info()

    @property
    def native(self) -> core.Engine:
        """The extension's engine, for what has no method here. Calls on it bypass the one-thread check."""
        return self._handle()

    # Life

    def close(self) -> None:
        """Frees weights and caches. A second call does nothing; any other use afterwards is a
        `ValueError`.
        """
        if self._native is None:
            return
        with self.calling() as native:
            if self._cache is not None:
                self._cache.save(native)
            self._native = None
            self._sessions.clear()
            self._main = None
            native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # For Session and Stream

    @contextlib.contextmanager
    def calling(self) -> Iterator[core.Engine]:
        """Holds the engine for one native call and hands its log on; `EngineBusyError` if a thread holds it.

        Not a lock: Ctrl+C between `acquire` and `try` would leave that locked for ever. Here the thread that
        was interrupted still holds the engine, and its next call releases it. `setdefault` is atomic.
        """
        me = threading.get_ident()
        while self._holder.setdefault("thread", me) != me:
            if self.waits:
                time.sleep(0.001)
                continue
            raise EngineBusyError(
                "the engine is in use by another thread; one engine serves one thread at a time"
            )
        try:
            yield self._handle()
        finally:
            self._holder.pop("thread", None)
            drain()

    def resolve(self, strategy: Strategy) -> tuple[Strategy, str]:
        """The strategy that will run and why. A tree becomes a chain of its depth on a target that cannot
        verify trees; without a drafter a fixed strategy is a `ValueError`.
        """
        if strategy.kind in ("chain", "tree") and not self.has_draft:
            raise ValueError(f"strategy {strategy} needs a drafter: open the engine with draft=...")
        resolved, why = strategy.resolved(self.has_draft)
        if resolved.kind == "tree" and self.chains_only:
            return Strategy.parse(f"chain:{resolved.depth}"), f"in place of {strategy}: {self.chains_only}"
        return resolved, why

    def book(self, stats: Timings) -> None:
        """Adds one generation's counters to `stats`."""
        self.stats = self.stats + stats
        if self._cache is not None:
            with contextlib.suppress(EngineBusyError), self.calling() as native:
                self._cache.save_now_and_then(native)

    def forget(self, session: Session) -> None:
        """Drops a closed session."""
        self._sessions = [one for one in self._sessions if one is not session]

    def _connect_servers(self) -> None:
        """Gives llama.cpp the devices of the RPC servers; the drafter stays on this machine."""
        if self.model.rpc:
            from eaglecpp.engine import rpc

            rpc.connect(self.model.rpc)
            self.drafting = rpc.keep_drafter_here(self.drafting, core.system_info()["devices"])

    def _planner_cache(self) -> PlannerCache | None:
        if not self.has_draft or not PlannerCache.is_wanted(self.drafting):
            return None
        cache = PlannerCache.of(self._handle(), self.target_path, self.draft_path, self.model, self.drafting)
        cache.load(self._handle())
        return cache

    def _settle_exactness(self) -> Exactness:
        if not self.has_draft or self.drafting.exact == "off":
            return Exactness()
        try:
            found = settle(self._handle(), self.target_path, self.model, self.drafting)
        finally:
            drain()
        if self.drafting.exact == "on" and found.reason:
            _log.warning("exact=on: plain decoding, because %s", found.reason)
        return found

    def _session(self) -> Session:
        if self._main is None:
            self._main = self.session()
        return self._main

    def _handle(self) -> core.Engine:
        if self._native is None:
            raise ValueError("this engine is closed")
        return self._native

    def _checked_tokens(self, tokens: Sequence[int]) -> list[int]:
        ids, n_vocab = [operator.index(token) for token in tokens], self.n_vocab
        for position, token in enumerate(ids):
            if not 0 <= token < n_vocab:
                raise ValueError(
                    f"token id {token} at position {position}: this model's ids are 0 to {n_vocab - 1}"
                )
        return ids

    def _opened_by_model(self, messages: Sequence[Any]) -> Sequence[Any]:
        """The conversation behind what a stored model begins every one with, by Ollama's rule."""
        stored = self._stored
        if stored is None or not (stored.system or stored.messages):
            return messages
        from eaglecpp.chat.message import Message

        turns = [turn if isinstance(turn, Message) else Message.from_dict(turn) for turn in messages]
        has_system = bool(turns) and turns[0].role == "system"
        system = [Message("system", stored.system)] if stored.system and not has_system else []
        return [*system, *stored.messages, *turns]

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        text = self._handle().chat_template()
        if self._stored is not None and self._stored.has_own_template:
            return self._stored_template(self._stored, text)
        if not text:
            raise UnsupportedError(
                f"{self.target_path.name} has no chat template (tokenizer.chat_template): it is probably a "
                "base model. Use generate(), or give template="
            )
        return self._parse_template(text)

    def _parse_template(self, text: str) -> ChatTemplate:
        from eaglecpp.chat.template import ChatTemplate

        return ChatTemplate.from_gguf(text, *self._border_texts())

    def _stored_template(self, stored: ResolvedModel, gguf: str) -> ChatTemplate:
        from eaglecpp.chat.template import ChatTemplate

        bos_text, eos_text = self._border_texts()
        return ChatTemplate.choose(
            modelfile=stored.template,
            gguf=gguf,
            stored=stored.stored_template,
            choice=stored.template_choice,
            bos_text=bos_text,
            eos_text=eos_text,
        )

    def _border_texts(self) -> tuple[str, str]:
        """The texts of BOS and EOS, "" for none."""
        eos = self._handle().eos
        eos_text = b"" if eos < 0 else self.token_to_piece(eos, special=True)
        return self.bos_text.decode("utf-8", "replace"), eos_text.decode("utf-8", "replace")


def _with_text(drafting: DraftOptions, draft: str | os.PathLike[str] | None) -> DraftOptions:
    """The options that naming the text in place of a drafter stands for."""
    if draft != TEXT:
        return drafting
    if drafting.text_drafts == "off":
        raise ValueError(
            "draft 'text' asks for drafts from the text, text_drafts 'off' for none; leave one out"
        )
    return replace(drafting, text_drafts="on")


def _whole(
    stored: ResolvedModel,
    draft: str | os.PathLike[str] | None,
    strategy: str | Strategy | None,
    of_model: str | None,
) -> tuple[os.PathLike[str], str | os.PathLike[str] | None, str | Strategy]:
    """Target, drafter and strategy of a model by name, under what the caller asked for."""
    is_off = Strategy.parse("auto" if strategy is None else strategy).kind == "off"
    if draft is None and not is_off:
        draft = stored.draft
    if strategy is None:  # a model may keep a strategy without the drafter it was for
        can_draft = draft is not None or stored.engine_options().get("text_drafts") == "on"
        strategy = of_model if of_model is not None and can_draft else "auto"
    return stored.target, draft, strategy


def _over_stored(
    given: Sequence[dict[str, Any]], own: Mapping[str, Any], objects: Sequence[Any]
) -> list[dict[str, Any]]:
    """Options given one by one over a stored model's; a whole option object replaces all of the model's of
    its kind but adapters, which are weights.
    """
    parts = split(own, ModelOptions, DraftOptions, SamplingOptions)
    for index, one in enumerate(objects):
        if one is not None:
            keep = {"lora"} if not getattr(one, "lora", True) else set()
            parts[index] = {name: value for name, value in parts[index].items() if name in keep}
    return [of_model | part for of_model, part in zip(parts, given, strict=True)]


def _note_amx() -> None:
    amx = core.system_info()["amx"]
    if amx["claimed"] and not amx["works"]:
        _log.info(
            "the CPU claims AMX but its instructions do not work here; loading without repacked weights"
        )
