# SPDX-License-Identifier: MIT
"""`Request`: one generation, checked and ready to start; and what all conversations of an engine share."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eaglecpp._extension import core
from eaglecpp.engine.drafting import Drafting
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.engine.native import NativeEngine
from eaglecpp.engine.params import generate_params
from eaglecpp.engine.vocabulary import Prompt, Vocabulary
from eaglecpp.errors import InvalidValueError
from eaglecpp.options import SamplingOptions, Strategy, split
from eaglecpp.results import Timings

if TYPE_CHECKING:
    from eaglecpp.chat.message import Message
    from eaglecpp.chat.model import ChatModel, ChatPrompt
    from eaglecpp.chat.prompts import PromptMemory
    from eaglecpp.results import Completion

EXACT = ("auto", "on", "off")
_FORMS = ("grammar", "json_schema", "response_format")

__all__ = ["Answering", "Request", "Shared", "make_request"]


@dataclass
class Shared:
    """What the conversations of an engine have in common. count: takes the counters of each generation."""

    native: NativeEngine
    vocabulary: Vocabulary
    drafting: Drafting
    sampling: SamplingOptions
    chat: ChatModel
    count: Callable[[Timings], None]

    def beside(self, n_sequences: int, n_ctx: int) -> Shared:
        """The same for an engine beside this one, see `NativeEngine.beside`."""
        native = self.native.beside(n_sequences, n_ctx)
        return replace(self, native=native, drafting=replace(self.drafting, engine=native))

    def chat_with(self, options: dict[str, Any]) -> tuple[ChatModel, dict[str, Any]]:
        """The model with the template that `options` ask for, and those that are about the prompt; both are
        taken out of `options`. Raises UnsupportedError without any template.
        """
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
    sampler: core.MadeSampler | None = None
    read: Callable[[Completion], Message] | None = None

    def params(self) -> core.GenerateParams:
        """The request in the extension's terms."""
        params = generate_params(self.sampling, self.seed, self.strategy)
        params.log_plan = self.log_plan
        params.exact = self.exact
        return params


def make_request(
    shared: Shared,
    prompt: Prompt,
    *,
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
    drafting = shared.drafting
    (given,) = split(options, SamplingOptions)
    text = resolve_grammar(grammar, json_schema, response_format)
    if text is not None:
        given["grammar"] = text
    chosen = replace(sampling or shared.sampling, **given)
    resolved, why = drafting.resolve(drafting.strategy if strategy is None else Strategy.parse(strategy))
    if exact is not None and exact not in EXACT:
        raise InvalidValueError(f"exact must be one of {', '.join(EXACT)}; got {exact!r}")
    return Request(
        prompt=shared.vocabulary.prompt_tokens(prompt, has_to_fit=True),
        sampling=chosen,
        seed=random.getrandbits(31) if chosen.wants_random_seed else int(chosen.seed or 0),
        strategy=resolved,
        plan={"strategy": str(resolved), "why": why},
        log_plan=log_plan,
        on_prefill=on_prefill,
        stop_when=stop_when,
        utf8_errors=utf8_errors,
        exact=exact or "",
    )
