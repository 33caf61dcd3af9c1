# SPDX-License-Identifier: MIT
"""`Request`: one generation, checked and ready to start; `Drafting`: what an engine can draft from; `Shared`:
what all its conversations have.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglecpp._extension import core
from eaglecpp.engine.exactness import Exactness
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.engine.infill import Infill
from eaglecpp.engine.native import NativeEngine
from eaglecpp.engine.vocabulary import Prompt, Vocabulary
from eaglecpp.errors import InvalidTypeError, InvalidValueError
from eaglecpp.learning import Learning
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy, describe, split
from eaglecpp.results import Timings

if TYPE_CHECKING:
    from eaglecpp.chat.conversation import PromptMemory
    from eaglecpp.chat.message import Message
    from eaglecpp.chat.model import ChatModel, ChatPrompt
    from eaglecpp.results import Completion

__all__ = [
    "Answering",
    "Drafting",
    "Request",
    "Shared",
    "engine_options",
    "generate_params",
    "make_request",
    "resolve_strategy",
]


def resolve_strategy(strategy: Strategy, has_draft: bool, chains_only: str = "") -> tuple[Strategy, str]:
    """As `Engine.resolve`. chains_only: why the target takes no trees, "" when it does."""
    if strategy.kind in ("chain", "tree") and not has_draft:
        raise InvalidValueError(f"strategy {strategy} needs a drafter: open the engine with draft=...")
    resolved, why = strategy.resolved(has_draft)
    if resolved.kind == "tree" and chains_only:
        return Strategy.parse(f"chain:{resolved.depth}"), f"instead of {strategy}: {chains_only}"
    return resolved, why


@dataclass
class Drafting:
    """has_draft: whether there is a drafter, or the text is drafted from; strategy: the engine's own;
    n_leaves: most leaves of a tree.
    """

    engine: NativeEngine
    has_draft: bool
    strategy: Strategy
    n_leaves: int
    exactness: Exactness = field(default_factory=Exactness)

    def resolve(self, strategy: Strategy) -> tuple[Strategy, str]:
        """As `Engine.resolve`."""
        resolved, why = resolve_strategy(strategy, self.has_draft, self.engine.chains_only)
        if resolved.kind == "tree" and resolved.n_leaves > self.n_leaves:
            why += (
                f", with at most {self.n_leaves} leaves instead of {resolved.n_leaves}: the engine was "
                "opened for that many (n_leaves_max)"
            )
        return resolved, why

    def plan_facts(self, asked: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
        """`Timings.plan` of a generation that has ended. asked: strategy and why; raw: its counters."""
        plan = dict(asked)
        if not self.has_draft:
            return plan
        says_why = plan["strategy"] == "auto"
        plan |= {name: fact for name, fact in raw["plan"].items() if says_why or name != "why"}
        if says_why and self.engine.chains_only:
            plan["why"] += f"; chains only: {self.engine.chains_only}"
        if raw["cut"] >= 0:
            plan["why"] += f"; {self._why_cut(raw['cut'])}"
        return plan

    def _why_cut(self, n_nodes: int) -> str:
        """Why a strategy ran smaller than it is, or not at all."""
        exact = self.exactness
        if n_nodes == 0:
            return f"plain, to be exact: {exact.reason or f'only batches of {exact.rows} rows are exact'}"
        return f"cut to {n_nodes} nodes, because only batches of {exact.rows} rows are exact"


_MIN_DRAFT_MAX = 16
_MORE_OF_TEXT = 16  # copies run on and on, and proposing them costs nothing
# Declared in SamplingOptions, but not part of choosing a token: they go into GenerateParams or stay in
# Python.
_NOT_SAMPLING = {"max_tokens", "stop", "ignore_eos", "n_probs", "seed"}


def engine_options(
    target: Path, draft: Path | None, model: ModelOptions, drafting: DraftOptions, strategy: Strategy
) -> core.EngineOptions:
    """Everything the extension needs to load the models; limits of 0 become what the strategy needs."""
    native = core.EngineOptions()
    native.target_path = str(target)
    native.draft_path = "" if draft is None else str(draft)
    _copy(model, native, skip={"lora", "mmproj", "rpc", "tensor_split", "override_tensor"})
    _copy(drafting, native, skip={"n_draft_max", "n_leaves_max", "planner_cache", "learn"})
    native.lora = list(model.lora)
    native.tensor_split = list(model.tensor_split)
    native.override_tensor = list(model.override_tensor)
    native.n_draft_max = drafting.n_draft_max or max(_MIN_DRAFT_MAX, strategy.nodes)
    if drafting.text_drafts == "on" and not drafting.n_draft_max:
        native.n_draft_more = _MORE_OF_TEXT
    native.n_leaves_max = drafting.n_leaves_max or strategy.n_leaves
    return native


def generate_params(sampling: SamplingOptions, seed: int, strategy: Strategy) -> core.GenerateParams:
    """One generation in the extension's terms; `strategy` is resolved, `seed` drawn."""
    native = core.SamplingParams()
    _copy(sampling, native, skip=_NOT_SAMPLING | {"logit_bias", "dry_sequence_breakers"})
    native.seed = seed
    native.logit_bias = list(sampling.logit_bias)
    native.dry_sequence_breakers = list(sampling.dry_sequence_breakers)
    params = core.GenerateParams()
    params.sampling = native
    params.strategy = core.Strategy(strategy.kind, strategy.k, strategy.depth, strategy.nodes)
    params.max_tokens = sampling.max_tokens
    params.n_probs = sampling.n_probs
    params.ignore_eos = sampling.ignore_eos
    return params


def _copy(source: ModelOptions | DraftOptions | SamplingOptions, target: object, skip: set[str]) -> None:
    for option in describe(source):
        if option.name not in skip:
            if not hasattr(target, option.name):
                raise TypeError(f"the extension's {type(target).__name__} has no field {option.name!r}")
            setattr(target, option.name, getattr(source, option.name))


EXACT = ("auto", "on", "off")
_FORMS = ("grammar", "json_schema", "response_format")


@dataclass
class Shared:
    """What the conversations of an engine have in common. count: takes the counters of each generation;
    learning: keeps its verified drafts.
    """

    native: NativeEngine
    vocabulary: Vocabulary
    drafting: Drafting
    sampling: SamplingOptions
    chat: ChatModel
    count: Callable[[Timings], None]
    learning: Learning | None = None

    def check_generates(self) -> None:
        """Raises UnsupportedError for an embedding model."""
        self.native.get().check_generates()

    def beside(self, n_sequences: int, n_ctx: int) -> Shared:
        """The same for an engine beside this one, see `NativeEngine.beside`."""
        native = self.native.beside(n_sequences, n_ctx)
        return replace(self, native=native, drafting=replace(self.drafting, engine=native))

    def chat_with(self, options: dict[str, Any]) -> tuple[ChatModel, dict[str, Any]]:
        """The model with the template that `options` ask for, and those that are about the prompt; both are
        taken out of `options`. Raises UnsupportedError without any template.
        """
        self.check_generates()
        template = options.pop("template", None)
        chat = self.chat.with_template(template)
        if template is None:
            chat.require_template()
        form = resolve_grammar(*(options.pop(name, None) for name in _FORMS))
        if form is not None:
            options["grammar"] = form
        think = chat.thinking(options.pop("think", None), has_form=form is not None)
        return chat, {"tools": options.pop("tools", None) or (), "think": think}

    def chat_request(
        self, messages: Sequence[Any], options: Mapping[str, Any], memory: PromptMemory | None = None
    ) -> Answering:
        """A conversation to be answered, checked; options as `Session.chat`. memory: of the caches that the
        prompt will meet.
        """
        rest = dict(options)
        chat, of_prompt = self.chat_with(rest)
        prompt = chat.prompt(chat.conversation(messages).prompt(), memory, n_ctx=0, **of_prompt)
        return self.answering(chat, prompt, rest)

    def answering(self, chat: ChatModel, prompt: ChatPrompt, options: Mapping[str, Any]) -> Answering:
        """A prompt to be answered, checked; options without those about the prompt."""
        request = make_request(self, prompt.tokens, **options)
        return Answering(prompt, replace(request, read=lambda completion: chat.message(prompt, completion)))


@dataclass(frozen=True)
class Answering:
    """An answer that was checked and has not begun."""

    prompt: ChatPrompt
    request: Request


@dataclass(frozen=True)
class Request:
    """One generation. strategy: resolved; plan: that strategy in words, and why it is the one; exact: "" = as
    the engine was opened; sampler: made before the generation begins, which then begins at once; read: turns
    the result of a chat into a message.
    """

    prompt: list[int]
    sampling: SamplingOptions
    seed: int
    strategy: Strategy
    plan: Mapping[str, Any]
    log_plan: bool
    on_prefill: Callable[[int, int], None] | None
    stop_when: Callable[[list[int]], bool] | None
    utf8_errors: str
    exact: str = ""
    cache_prompt: bool = True
    sampler: core.MadeSampler | None = None
    read: Callable[[Completion], Message] | None = None

    def params(self) -> core.GenerateParams:
        """The request in the extension's terms."""
        params = generate_params(self.sampling, self.seed, self.strategy)
        params.log_plan = self.log_plan
        params.exact = self.exact
        params.cache_prompt = self.cache_prompt
        return params


def make_request(
    shared: Shared,
    prompt: Prompt,
    *,
    suffix: str | None = None,
    cache_prompt: bool = True,
    sampling: SamplingOptions | None = None,
    strategy: str | Strategy | None = None,
    exact: str | None = None,
    grammar: Any = None,
    json_schema: str | Mapping[str, Any] | None = None,
    response_format: Mapping[str, Any] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    stop_when: Callable[[list[int]], bool] | None = None,
    utf8_errors: str = "replace",
    log_plan: bool = False,
    **options: Any,
) -> Request:
    """Checks the arguments of `Session.stream`, which documents them; draws the seed if there is none."""
    shared.check_generates()
    drafting = shared.drafting
    (given,) = split(options, SamplingOptions)
    if suffix is not None:
        if not isinstance(prompt, str) or not isinstance(suffix, str):
            found = f"{type(prompt).__name__} and {type(suffix).__name__}"
            raise InvalidTypeError(f"suffix: prompt and suffix must be str, found {found}")
        prompt = shared.chat.infill(Infill(prompt, suffix)).tokens
    text = resolve_grammar(grammar, json_schema, response_format)
    if text is not None:
        given["grammar"] = text
    chosen = replace(sampling or shared.sampling, **given)
    resolved, why = drafting.resolve(drafting.strategy if strategy is None else Strategy.parse(strategy))
    if exact is not None and exact not in EXACT:
        raise InvalidValueError(f"exact must be one of {', '.join(EXACT)}; got {exact!r}")
    return Request(
        prompt=shared.vocabulary.prompt_tokens(prompt, has_to_fit=True, images=True),
        sampling=chosen,
        seed=random.getrandbits(31) if chosen.wants_random_seed else int(chosen.seed or 0),
        strategy=resolved,
        plan={"strategy": str(resolved), "why": why},
        log_plan=log_plan,
        on_prefill=on_prefill,
        stop_when=stop_when,
        utf8_errors=utf8_errors,
        exact=exact or "",
        cache_prompt=cache_prompt,
    )
