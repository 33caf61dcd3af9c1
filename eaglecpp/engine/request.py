# SPDX-License-Identifier: MIT
"""`GenerationRequest`: a request as the caller wrote it. `Shared`: state shared by an engine's conversations.
`Shared.resolve` checks a request and returns a `ResolvedRequest`, which is ready to start.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eaglecpp._extension import core
from eaglecpp.chat.codec import ChatCodec, ChatPrompt, PromptOptions, answer_room
from eaglecpp.chat.conversation import Conversation
from eaglecpp.chat.reader import AnswerReader
from eaglecpp.chat.template import ChatTemplate, Rendered
from eaglecpp.chat.think_budget import ThinkBudget
from eaglecpp.engine.exactness import Exactness
from eaglecpp.engine.gains import Gains
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.engine.infill import Infill
from eaglecpp.engine.native import NativeEngine
from eaglecpp.engine.planner_cache import PlannerCache
from eaglecpp.engine.prompt_cache import PromptCache
from eaglecpp.engine.vocabulary import Prompt, Vocabulary
from eaglecpp.errors import InvalidTypeError, InvalidValueError
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy, describe, split
from eaglecpp.results import Timings


def resolve_strategy(
    strategy: Strategy, has_draft: bool, chains_only: str = "", *, has_form: bool = False
) -> tuple[Strategy, str]:
    """Resolves a strategy as `Engine.resolve` does. chains_only: reason why the target supports no trees; ""
    if it supports trees.
    """
    has_draft = has_draft or (has_form and strategy.kind != "off")
    if strategy.kind in ("chain", "tree") and not has_draft:
        raise InvalidValueError(f"strategy {strategy} needs a drafter: open the engine with draft=...")
    if not has_draft:
        return Strategy("off"), "no drafter"
    if strategy.kind == "tree" and chains_only:
        return Strategy.parse(f"chain:{strategy.depth}"), f"instead of {strategy}: {chains_only}"
    return strategy, "decided each round" if strategy.kind == "auto" else "asked for"


_MIN_DRAFT_MAX = 16
# Number of additional tokens in text drafts. Copied passages are long, and proposing tokens is free.
_MORE_OF_TEXT = 16
# Fields of SamplingOptions that do not affect the choice of a token. They are passed in GenerateParams or
# used only in Python.
_NOT_SAMPLING = {"max_tokens", "stop", "ignore_eos", "n_probs", "seed", "max_repeats", "think_budget"}


def native_options(
    target: Path, draft: Path | None, model: ModelOptions, drafting: DraftOptions, strategy: Strategy
) -> core.EngineOptions:
    """Returns the extension's options for loading the models. A draft limit of 0 is replaced by the number
    that the strategy needs.
    """
    native = core.EngineOptions()
    native.target_path = str(target)
    native.draft_path = "" if draft is None else str(draft)
    _copy(model, native, skip={"mmproj", "rpc", "prompt_cache", "prompt_cache_bytes"})
    _copy(drafting, native, skip={"n_draft_max", "n_leaves_max", "planner_cache", "learn"})
    native.n_draft_max = drafting.n_draft_max or max(_MIN_DRAFT_MAX, strategy.nodes)
    drafts_long = drafting.text_drafts == "on" or (drafting.text_drafts == "auto" and draft is None)
    if drafts_long and not drafting.n_draft_max:
        native.n_draft_more = _MORE_OF_TEXT
    native.n_leaves_max = drafting.n_leaves_max or (1 if model.separate_caches else strategy.n_leaves)
    return native


def generate_params(sampling: SamplingOptions, seed: int, strategy: Strategy) -> core.GenerateParams:
    """Returns the extension's parameters of a generation. strategy: a strategy that this engine can run;
    seed: the final seed.
    """
    native = core.SamplingParams()
    _copy(sampling, native, skip=_NOT_SAMPLING)
    native.seed = seed
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
OF_STREAM = frozenset((
    "suffix", "cache_prompt", "sampling", "strategy", "exact", "grammar", "json_schema", "response_format",
    "on_prefill", "stop_when", "utf8_errors", "log_plan",
))  # fmt: skip
"""Keyword arguments of `Session.stream`, in addition to the fields of `SamplingOptions`."""
OF_CHAT = OF_STREAM | {"template", "tools", "think"}
"""Keyword arguments of `Session.chat`, in addition to the fields of `SamplingOptions`."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest(PromptOptions):
    """A request as the caller wrote it, from any API. Exactly one of `messages`, `prompt` and `gap` is set.

    messages:  a conversation, which becomes a prompt through the chat template
    prompt:    text or token ids, used unchanged
    gap:       two texts; the answer goes between them
    template:  chat template to use instead of the model's own
    needs_template: raise an error if the model's template is only a guess
    truncate:  drop the oldest messages of a conversation that does not fit, or the text farthest from a gap
    n_keep:    tokens to keep from the beginning of a `prompt` that does not fit, in addition to the prompt's
        end; negative values refuse such a prompt
    images:    accept image ids in a prompt, if the engine still has these images
    options:   fields of `SamplingOptions` that override `sampling`, or the engine's defaults without
    `sampling`
    draft_window: as in `DraftOptions`; None = the engine's own value

    The other fields are arguments of `Session.stream`, `Session.chat` and `PromptOptions`.
    """

    messages: Conversation | Sequence[Any] | None = None
    prompt: Prompt | None = None
    gap: Infill | None = None
    template: str | ChatTemplate | None = None
    needs_template: bool = False
    truncate: bool = False
    n_keep: int = -1
    images: bool = False
    sampling: SamplingOptions | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    grammar: Any = None
    json_schema: str | Mapping[str, Any] | None = None
    response_format: Mapping[str, Any] | None = None
    strategy: str | Strategy | None = None
    exact: str | None = None
    draft_window: int | None = None
    cache_prompt: bool = True
    on_prefill: Callable[[int, int], None] | None = None
    stop_when: Callable[[list[int]], bool] | None = None
    utf8_errors: str = "replace"
    log_plan: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], **what: Any) -> GenerationRequest:
        """Builds a request from keyword arguments. options: arguments of `Session.chat` if `what` contains
        `messages`, else arguments of `Session.stream`; what: further fields of the request. Raises
        InvalidTypeError for unknown arguments.
        """
        known = OF_STREAM
        if "messages" in what:
            known, what = OF_CHAT, {"needs_template": options.get("template") is None, **what}
        own = {name: value for name, value in options.items() if name in known}
        (sampling,) = split({name: v for name, v in options.items() if name not in known}, SamplingOptions)
        suffix = own.pop("suffix", None)
        if suffix is not None:
            prompt = what.pop("prompt")
            if not isinstance(prompt, str) or not isinstance(suffix, str):
                found = f"{type(prompt).__name__} and {type(suffix).__name__}"
                raise InvalidTypeError(f"suffix: expected prompt and suffix as str, found {found}")
            what["gap"] = Infill(prompt, suffix)
        own["tools"] = own.get("tools") or ()
        return cls(**what, **own, options=sampling, images=True)

    def chosen(self, usual: SamplingOptions) -> SamplingOptions:
        """Returns the request's sampling options. Options that the request does not set are taken from
        `usual`.
        """
        sampling = replace(self.sampling or usual, **self.options)
        own = self.grammar or self.options.get("grammar")
        text = resolve_grammar(own, self.json_schema, self.response_format)
        if text is None and sampling.grammar:
            text = resolve_grammar(sampling.grammar)  # a Lark grammar is returned unchanged
        return sampling if text is None else replace(sampling, grammar=text)


@dataclass
class Shared:
    """Shared state of an engine's conversations.

    count:     function called with the counters and the temperature of each generation
    has_draft: True if drafts come from a drafter or the text
    strategy:  the engine's own strategy
    n_leaves:  maximum leaves of a tree
    has_forms: True if forced tokens of grammars are drafted although there is no drafter
    on_answer: function called with the tokens of each prompt and answer, which are saved for training the
        drafter
    prompts:   files of earlier prompts
    gains:     speed-ups of the last answers
    cache:     the planner's file
    after_answer: function called when the reader of a stream has got the whole answer
    """

    native: NativeEngine
    vocabulary: Vocabulary
    sampling: SamplingOptions
    chat: ChatCodec
    count: Callable[[Timings, float], None]
    has_draft: bool
    strategy: Strategy
    n_leaves: int
    has_forms: bool = False
    exactness: Exactness = field(default_factory=Exactness)
    on_answer: Callable[[Sequence[int], Sequence[int]], None] | None = None
    prompts: PromptCache | None = None
    gains: Gains = field(default_factory=Gains)
    cache: PlannerCache | None = None
    after_answer: Callable[[], None] = lambda: None

    def resolve(self, request: GenerationRequest) -> ResolvedRequest:
        """Checks a request, builds its prompt and the reader of its answer, and draws a seed if the seed is
        unset. Raises ContextFullError, GrammarError, TemplateError, UnsupportedError, and TypeError or
        ValueError for misuse.
        """
        self.native.get().check_generates()
        sampling = request.chosen(self.sampling)
        chat = self.chat.with_template(request.template)
        prompt = self._prompt(request, sampling, chat)
        budget: Callable[[], ThinkBudget] | None = None
        reader: AnswerReader | None = None
        answer_grammar = sampling.grammar
        if request.messages is not None:
            if sampling.think_budget == 0:
                prompt = chat.without_thought(prompt)
            budget, reader = chat.think_budget(prompt, sampling.think_budget), chat.reader(prompt)
            if sampling.grammar:
                sampling = replace(sampling, grammar=chat.grammar(prompt, sampling.grammar, request.think))
        strategy = self.strategy if request.strategy is None else Strategy.parse(request.strategy)
        resolved, why = self.resolve_strategy(strategy, has_form=bool(sampling.grammar))
        if request.exact is not None and request.exact not in EXACT:
            raise InvalidValueError(f"exact: expected one of {', '.join(EXACT)}, found {request.exact!r}")
        stops = self.vocabulary.control_tokens(sampling.stop)
        return ResolvedRequest(
            source=request,
            prompt=prompt,
            chat=chat,
            reader=reader,
            sampling=sampling,
            seed=random.getrandbits(31)
            if sampling.wants_random_seed
            else sampling.fixed_seed(int(sampling.seed or 0)),
            strategy=resolved,
            plan={"strategy": str(resolved), "why": why},
            budget=budget,
            answer_grammar=answer_grammar,
            stop_tokens={token: text for token, text in stops.items() if not self.vocabulary.is_end(token)},
        )

    def resolve_strategy(self, strategy: Strategy, *, has_form: bool = False) -> tuple[Strategy, str]:
        """Resolves a strategy as `Engine.resolve` does. has_form: True for an answer with a grammar."""
        has_form = has_form and self.has_forms
        resolved, why = resolve_strategy(strategy, self.has_draft, self.native.chains_only, has_form=has_form)
        if resolved.kind == "tree" and resolved.n_leaves > self.n_leaves:
            why += (
                f", with at most {self.n_leaves} leaves instead of {resolved.n_leaves}, because the engine "
                "was opened for that many (n_leaves_max)"
            )
        return resolved, why

    def plan_facts(self, asked: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `Timings.plan` of a finished generation. asked: the strategy and the reason why it was
        chosen; raw: the generation's native counters.
        """
        plan = dict(asked)
        if not self.has_draft and plan["strategy"] == "off":
            return plan
        says_why = plan["strategy"] == "auto"
        plan |= {
            name: fact for name, fact in raw["plan"].items() if says_why or name not in ("why", "reason")
        }
        if says_why and self.native.chains_only:
            plan["why"] += f"; chains only: {self.native.chains_only}"
        if raw["cut"] >= 0:
            only = f"only batches of {self.exactness.rows} tokens are exact"
            plain = f"target-only, to be exact: {self.exactness.reason or only}"
            plan["why"] += f"; nodes cut to {raw['cut']}, because {only}" if raw["cut"] else f"; {plain}"
        return plan

    def prompt(self, request: GenerationRequest) -> ChatPrompt:
        """Returns only the prompt of a request. Raises ContextFullError if the prompt leaves no room for an
        answer.
        """
        return self._prompt(request, request.chosen(self.sampling), self.chat.with_template(request.template))

    def _prompt(self, request: GenerationRequest, sampling: SamplingOptions, chat: ChatCodec) -> ChatPrompt:
        n_ctx, messages = self.native.get().n_ctx, request.messages
        n_max = n_ctx - answer_room(sampling.max_tokens, n_ctx)
        if messages is not None:
            if request.needs_template:
                chat.require_template()
            options = replace(request, has_form=bool(sampling.grammar))
            conversation = messages if isinstance(messages, Conversation) else chat.conversation(messages)
            if request.truncate:
                n_room = sampling.max_tokens
                return chat.fitting(conversation, n_ctx=n_ctx, max_tokens=n_room, options=options)
            return chat.prompt(conversation.prompt(), n_ctx=0, options=options)
        if request.gap is not None:
            return chat.infill(request.gap, n_max if request.truncate else 0)
        return self._plain_prompt(request, n_ctx, n_max)

    def _plain_prompt(self, request: GenerationRequest, n_ctx: int, n_max: int) -> ChatPrompt:
        """Builds a prompt without a template. n_max: maximum tokens of a truncated prompt. Truncation removes
        whole blocks of about `n_max / 2` tokens. So a growing prompt keeps the same prefix for several turns,
        and this prefix is not computed again.
        """
        prompt: Any = request.prompt
        is_cut = request.n_keep >= 0
        notices: tuple[str, ...] = ()
        tokens = self.vocabulary.prompt_tokens(prompt, has_to_fit=not is_cut, images=request.images)
        if is_cut and len(tokens) >= n_ctx:
            n_keep = min(request.n_keep + len(self.vocabulary.bos_tokens), n_max - 1)
            n_block = max(1, (n_max - n_keep) // 2)
            n_cut = -(-(len(tokens) - n_max) // n_block) * n_block
            notices = (
                f"the prompt has {len(tokens)} tokens, but the context holds {n_ctx}: {n_cut} tokens after "
                f"the first {n_keep} were left out",
            )
            tokens = tokens[:n_keep] + tokens[n_keep + n_cut :]
        text = prompt if isinstance(prompt, str) else ""
        return ChatPrompt(Rendered(text, has_bos=False), tokens, notices=notices)


@dataclass(frozen=True)
class ResolvedRequest:
    """One generation, checked and ready to start.

    source:   the original request
    chat:     the model's chat, with the request's own template if it has one
    reader:   reader of a chat's answer, built with the prompt and used by this generation only
    strategy: the strategy that will run; `plan` has this strategy in words, and the reason
    sampler:  sampler prepared in advance, so that the generation starts at once
    budget:   function that returns the limit of the answer's thinking
    answer_grammar: the part of the grammar that applies after the thinking
    stop_tokens: stop strings that are control tokens, which have no text in an answer. Tokens that end every
    generation are left out
    """

    source: GenerationRequest
    prompt: ChatPrompt
    chat: ChatCodec
    sampling: SamplingOptions
    seed: int
    strategy: Strategy
    plan: Mapping[str, Any]
    sampler: core.MadeSampler | None = None
    reader: AnswerReader | None = None
    budget: Callable[[], ThinkBudget] | None = None
    answer_grammar: str = ""
    stop_tokens: Mapping[int, str] = field(default_factory=dict)

    def behind_thought(self, tokens: Sequence[int], n_taken: int) -> ResolvedRequest:
        """Returns the request for the rest of an answer whose thinking was closed. tokens: tokens of the
        prompt and the answer so far; n_taken: number of the answer's tokens.
        """
        limit, seed = self.sampling.max_tokens, self.sampling.fixed_seed(self.seed + n_taken)
        limit = limit if limit < 0 else limit - n_taken
        sampling = replace(self.sampling, max_tokens=limit, grammar=self.answer_grammar)
        prompt = replace(self.prompt, tokens=list(tokens))
        source = replace(self.source, cache_prompt=True)  # the engine's caches already contain the prompt
        return replace(
            self, source=source, prompt=prompt, sampling=sampling, seed=seed, sampler=None, budget=None
        )

    def params(self) -> core.GenerateParams:
        """Returns the request in the extension's terms."""
        params = generate_params(self.sampling, self.seed, self.strategy)
        params.log_plan = self.source.log_plan
        params.exact = self.source.exact or ""
        params.cache_prompt = self.source.cache_prompt
        params.draft_window = -1 if self.source.draft_window is None else self.source.draft_window
        return params
