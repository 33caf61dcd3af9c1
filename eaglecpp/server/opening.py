# SPDX-License-Identifier: MIT
"""A model's name to an open engine and everything a conversation with it needs: `Source`, `LoadedModel`.

The one module of the server that knows how models are found and opened. Everything here blocks; the pool
calls it in threads.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglecpp.async_engine import AsyncEngine
from eaglecpp.chat.conversation import Conversation, fold_system
from eaglecpp.chat.gotemplate import TemplateError
from eaglecpp.chat.message import Message
from eaglecpp.chat.template import ChatTemplate
from eaglecpp.chat.thinking import ThinkTags, tags_of
from eaglecpp.chat.tool_calls import CallMarks, call_marks
from eaglecpp.context import choose_n_ctx, free_memory, head_keys
from eaglecpp.engine import Engine
from eaglecpp.errors import MismatchError, ModelNotFoundError
from eaglecpp.locate import find_path
from eaglecpp.lowlevel import system_info
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.syntax import Command
from eaglecpp.options import TEXT, DraftOptions, ModelOptions, Strategy
from eaglecpp.store import ResolvedModel, Stores, resolve_draft, resolve_model

if TYPE_CHECKING:
    from eaglecpp.server.config import ServerConfig

__all__ = ["LoadedModel", "Prompt", "Source", "engine_options", "estimate", "find_source"]

_CONTROL = re.compile(r"<\|[^<>|]+\|>|\[/?[A-Z_]+\]|<[^<>]+>")
_SEQUENCE_IDS = 256  # of llama.cpp, shared by the leaves of all conversations
_N_BATCH = 256  # tokens of a prompt between two rounds: others wait for them
_MIB = 1 << 20

_log = logging.getLogger("eaglecpp.server")


@dataclass(frozen=True)
class Source:
    """What a name stands for now. state: changes when the stored model does."""

    name: str
    model: ResolvedModel
    draft: Path | None
    drafts_text: bool
    state: str

    @property
    def modelfile(self) -> Modelfile:
        """The model's Modelfile; of a bare file, one that only says FROM."""
        return self.model.modelfile or Modelfile(from_=(Command("model", str(self.model.target)),))

    @property
    def n_weight_bytes(self) -> int:
        files = [*_parts(self.model.target), *([self.draft] if self.draft else []), *self.model.adapters]
        return sum(path.stat().st_size for path in files)


@dataclass(frozen=True)
class Prompt:
    """A prompt's tokens, the end of its text, and how many messages had to be left out for want of room."""

    tokens: list[int] = field(repr=False)
    end: str
    n_left_out: int = 0


def find_source(name: str, config: ServerConfig, files: Mapping[str, Path] = {}) -> Source:  # noqa: B006
    """Looks a name up on this machine; nothing is fetched. files: GGUF files served under a name.

    Raises ModelNotFoundError.
    """
    if name in files:
        model = ResolvedModel(name, "path", files[name])
        state = f"{files[name]}:{files[name].stat().st_mtime_ns}"
    else:
        if find_as_path(name):
            raise ModelNotFoundError(f"model '{name}' not found")
        try:
            model = resolve_model(name)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"model '{name}' not found: {error}") from None
        state = f"{model.target}:{model.draft}:{_digest(model)}"
    draft, drafts_text = model.draft, model.engine_options().get("text_drafts") == "on" and model.draft is None
    if config.draft is not None and name in files:
        drafts_text = config.draft == TEXT
        draft = None if drafts_text else (find_path(config.draft, "drafter") or resolve_draft(config.draft))
    return Source(name, model, draft, drafts_text, state)


def find_as_path(name: str) -> bool:
    """Whether a request's model is meant as a path. Clients name models; which files are served is the
    operator's choice.
    """
    return name.startswith(("/", ".", "~", "\\")) or name.lower().endswith(".gguf") or "\\" in name


class LoadedModel:
    """A model in memory: its engine, template and defaults. Made by `load`; used by one server."""

    def __init__(
        self, source: Source, engine: AsyncEngine, strategy: Strategy, n_bytes: int, notices: Sequence[str]
    ) -> None:
        self.source = source
        self.engine = engine
        self.strategy = strategy
        self.n_bytes = n_bytes
        self.notices = list(notices)
        self.n_ctx = engine.engine.n_ctx
        self.folds_system = False
        self.template = self._choose_template()
        self.tags: ThinkTags | None = (
            None if self.template.language == "family" else tags_of(self.template.text)
        )
        self.calls: CallMarks | None = call_marks(self.template.text)
        self.think_marks = self._marks(self.tags.open + self.tags.close + self.tags.plain if self.tags else "")
        self.call_marks = self._marks(self.calls.open + self.calls.close if self.calls else "")

    @classmethod
    def load(
        cls, source: Source, config: ServerConfig, n_ctx: int, turns: AbstractContextManager[Any]
    ) -> LoadedModel:
        """Opens the engine. n_ctx: tokens of one conversation, 0 = as model and memory allow."""
        options = engine_options(source, config, n_ctx)
        n_bytes = estimate(source, options["model"], config.n_parallel)
        notices = [str(notice) for notice in source.model.notices]
        strategy = _strategy(source, config)

        def open_engine() -> Engine:
            can_draft = source.draft is not None or source.drafts_text
            if strategy.kind == "off" or not can_draft:
                return Engine(source.model.target, strategy="off", **options)
            draft = TEXT if source.drafts_text else source.draft
            try:
                return Engine(source.model.target, draft, strategy=strategy, **options)
            except MismatchError as error:
                if config.draft is not None:
                    raise
                notices.append(f"running without the drafter, it does not fit: {error}")
                _log.warning("%s: %s", source.name, notices[-1])
                return Engine(source.model.target, strategy="off", **options)

        engine = AsyncEngine(open_engine, n_queue=config.n_queue, turns=turns)
        engine.wait_opened()
        return cls(source, engine, strategy, n_bytes, notices)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def thinks(self) -> bool:
        return self.tags is not None

    @property
    def on_gpu(self) -> bool:
        """Whether layers lie on a GPU."""
        devices = system_info()["devices"]
        return self.engine.engine.model.n_gpu_layers != 0 and any(d["kind"] == "gpu" for d in devices)

    def token_bytes(self, token: int) -> bytes:
        return self.engine.engine.token_to_piece(token)

    def wanted(self, strategy: str | None) -> Strategy:
        """The strategy of a request. Raises ValueError for one that this model cannot run."""
        engine = self.engine.engine
        if strategy is None:
            return self.strategy if engine.has_draft else Strategy("off")
        wanted = Strategy.parse(strategy)
        if wanted.kind == "auto" and not engine.has_draft:
            return Strategy("off")
        if wanted.nodes > engine.native.n_draft_max:
            raise ValueError(
                f"strategy {wanted} drafts {wanted.nodes} nodes; this server has room for "
                f"{engine.native.n_draft_max} for each conversation (--draft-max)"
            )
        engine.resolve(wanted)
        return wanted

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
        n_room: int = 1,
        truncate: bool = True,
        template: str | None = None,
    ) -> Prompt:
        """The prompt of a conversation, behind what the model begins every one with. Where it does not fit,
        the oldest exchanges are left out, or with `truncate` off it stays too long for the caller to refuse.
        """
        turns = list(messages)
        system = ""
        if turns and turns[0].role == "system":
            system = turns.pop(0).content
        elif self.source.modelfile.system:
            system = self.source.modelfile.system
        conversation = Conversation(system, self.source.modelfile.messages, turns)
        made: dict[int, Prompt] = {}
        chosen = self.template if not template else self._choose_template(template)

        def make(part: Sequence[Message]) -> Prompt:
            if len(part) not in made:
                made[len(part)] = self._prompt(part, tools, think, chosen)
            return made[len(part)]

        if truncate:
            conversation.fit(lambda part: len(make(part).tokens), self.n_ctx, n_room)
        return replace(make(conversation.prompt()), n_left_out=conversation.n_left_out)

    def _prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        think: bool | str | None,
        template: ChatTemplate,
    ) -> Prompt:
        folded = fold_system(messages)
        try:
            if self.folds_system:
                messages = folded
            rendered = template.render(messages, tools=tools, think=think)
        except TemplateError:
            if folded == list(messages):
                raise
            rendered = template.render(folded, tools=tools, think=think)
            self.folds_system = True
        engine = self.engine.engine
        return Prompt(engine.tokenize(rendered.text, add_bos=not rendered.has_bos), rendered.text[-100:])

    def text_prompt(self, text: str) -> Prompt:
        """A prompt without a template."""
        return Prompt(self.engine.engine.prompt_tokens(text), text[-100:])

    def _choose_template(self, asked: str | None = None) -> ChatTemplate:
        engine, modelfile = self.engine.engine, self.source.modelfile
        eos = engine.native.eos
        eos_text = b"" if eos < 0 else engine.token_to_piece(eos, special=True)
        return ChatTemplate.choose(
            modelfile=asked or modelfile.template,
            gguf=engine.native.chat_template(),
            stored=self.source.model.stored_template,
            choice="modelfile" if asked else modelfile.settings.chat_template,
            has_token=lambda text: self._control_token(text) is not None,
            bos_text=engine.bos_text.decode("utf-8", "replace"),
            eos_text=eos_text.decode("utf-8", "replace"),
        )

    def _marks(self, text: str) -> dict[int, str]:
        """The control tokens, which have no text of their own, among the marks in `text`."""
        tokens = {mark: self._control_token(mark) for mark in _CONTROL.findall(text)}
        return {
            token: mark for mark, token in tokens.items() if token is not None and not self.token_bytes(token)
        }

    def _control_token(self, text: str) -> int | None:
        engine = self.engine.engine
        tokens = engine.tokenize(text, add_bos=False)
        whole = len(tokens) == 1 and engine.token_to_piece(tokens[0], special=True) == text.encode()
        return tokens[0] if whole else None


def _strategy(source: Source, config: ServerConfig) -> Strategy:
    text = config.strategy or source.model.engine_options().get("strategy", "auto")
    return Strategy.parse(text)


def engine_options(source: Source, config: ServerConfig, n_ctx: int) -> dict[str, Any]:
    """The option objects: the model's own, under the server's."""
    own = source.modelfile.engine_options()
    model = _group(own, "model.") | _group(config.engine, "model.")
    drafting = _group(own, "draft.") | _group(config.engine, "draft.")
    model.setdefault("n_batch", _N_BATCH)
    model["n_sequences"] = config.n_parallel
    model["lora"] = tuple((str(path), 1.0) for path in source.model.adapters)
    asked = n_ctx or int(model.get("n_ctx") or 0)
    model["n_ctx"] = asked or _choose_n_ctx(source, model, config.n_parallel)
    if source.drafts_text:
        drafting["text_drafts"] = "on"
    n_ids = _SEQUENCE_IDS // config.n_parallel - 1
    drafting.setdefault("n_leaves_max", max(1, min(Strategy.AUTO_LEAVES, n_ids)))
    return {"model": ModelOptions(**model), "drafting": DraftOptions(**drafting)}


def _choose_n_ctx(source: Source, options: Mapping[str, Any], n_parallel: int) -> int:
    """As for one conversation, in the share of the memory that each of them has."""
    n_free = free_memory()
    if n_free is not None:
        n_weights = source.n_weight_bytes
        n_free = n_weights + max(n_free - n_weights, 0) // n_parallel
    return choose_n_ctx(source.model.target, n_ubatch=options.get("n_ubatch", 512), n_free=n_free).n_ctx


def estimate(source: Source, options: ModelOptions, n_parallel: int) -> int:
    """Bytes that a model takes: its files, caches in F16, and what every engine has."""
    keys = head_keys(source.model.target)
    arch = keys.get("general.architecture", "")

    def number(name: str) -> int:
        value = keys.get(f"{arch}.{name}")
        value = max(value) if isinstance(value, list) and value else value
        return value if isinstance(value, int) else 0

    n_heads = number("attention.head_count") or 1
    n_head_dim = number("attention.key_length") or number("embedding_length") // n_heads
    n_kv = 2 * number("block_count") * (number("attention.head_count_kv") or n_heads) * n_head_dim
    n_ctx = options.n_ctx if options.n_ctx > 0 else 4096
    return source.n_weight_bytes + 2 * n_kv * n_ctx * n_parallel + 100 * _MIB


def _group(options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def _parts(target: Path) -> list[Path]:
    match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", target.name)
    return sorted(target.parent.glob(f"{match[1]}-*-of-{match[2]}.gguf")) if match else [target]


def _digest(model: ResolvedModel) -> str:
    stored = None if model.name is None else Stores.open().find(model.name)
    return "" if stored is None else stored.digest
