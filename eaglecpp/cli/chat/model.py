# SPDX-License-Identifier: MIT
"""`RunModel`: a model with everything a conversation needs, and how it is opened, and opened again.

It opens an `OpeningPlan`, made from the defaults of `run`, the Modelfile, the command line and what was set
in the chat.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.conversation import Conversation
from eaglecpp.cli.chat.defaults import run_defaults
from eaglecpp.cli.open_engine import look_up, needs_draft
from eaglecpp.cli.terminal import patience
from eaglecpp.errors import MismatchError
from eaglecpp.modelfile.parameters import PARAMETERS, ParameterValue
from eaglecpp.opening.context import ContextChoice
from eaglecpp.opening.find import Found
from eaglecpp.opening.plan import OpeningPlan, make_plan
from eaglecpp.options import SamplingOptions, Strategy

if TYPE_CHECKING:
    from eaglecpp.chat.conversation import PromptMemory
    from eaglecpp.chat.model import ChatModel
    from eaglecpp.engine import Engine

__all__ = ["RunModel", "find_source"]

_LOAD_PATIENCE_S = 1.0


def find_source(
    reference: str, draft: str | None = None, *, wants_draft: bool = True, insecure: bool = False
) -> Found:
    """Looks a reference up and downloads what is missing; arguments and errors as `look_up`."""
    return look_up(reference, draft, wants_draft=wants_draft, insecure=insecure).absolute()


class RunModel:
    """given: options on the command line by field name; strategy: the requested one, None = the model's;
    must_draft: raise click.UsageError before loading where a fixed strategy has nothing to draft from.

    may_wait: open it when something needs it, which a server's answers do not

    `plan` is made once, and again when something is set: how the model is opened with the current options.
    `parameters` and `strategy_set` hold what was set in the chat, by Modelfile name; `set_parameter` and
    `set_strategy` change them. `load_ms` is how long opening it took.
    """

    def __init__(
        self,
        source: Found,
        given: Mapping[str, Any],
        strategy: Strategy | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        *,
        must_draft: bool = False,
        may_wait: bool = False,
    ) -> None:
        self.source = source
        self.parameters: dict[str, ParameterValue] = dict(parameters or {})
        self.strategy_set = ""
        self._given = dict(given)
        self._asked = strategy
        self.plan = self._make_plan()
        if must_draft:
            needs_draft(strategy, self.plan.can_draft)
        self.notices: list[str] = []
        self.load_ms = 0.0
        self._engine: Engine | None = None
        if not may_wait:
            self.open()

    @property
    def is_open(self) -> bool:
        """Whether it is in this process's memory."""
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """Opened, if it was not."""
        return self.open() if self._engine is None else self._engine

    def open(self) -> Engine:
        """Loads it. Raises what `Engine` does."""
        started = time.perf_counter()
        self.notices += self.plan.notices
        with patience(_LOAD_PATIENCE_S, f"loading {self.source.name} ..."):
            self._engine = self._open()
        self.load_ms = 1000 * (time.perf_counter() - started)
        self.notices += self.chat.template.notices
        return self._engine

    def conversation(self, system: str | None = None) -> Conversation:
        """An empty one with the model's examples, and its system prompt unless another is given."""
        model = self.plan.model
        return Conversation((model.system if system is None else system) or "", model.messages)

    @property
    def chat(self) -> ChatModel:
        """Prompts and answers."""
        return self.engine.shared.chat

    @property
    def memory(self) -> PromptMemory:
        """Of the prompts and answers that are in the caches."""
        return self.engine.default_session.memory

    # Options

    def _make_plan(self) -> OpeningPlan:
        fitted = {PARAMETERS[name].option: PARAMETERS[name].fitted(v) for name, v in self.parameters.items()}
        return make_plan(
            self.source,
            strategy=self._asked,
            options=self._given,
            defaults=run_defaults(),
            later={option: value for option, value in fitted.items() if "." in option},
            choose_context=True,
        )

    @property
    def can_draft(self) -> bool:
        """Whether there is anything to draft from: a drafter, loaded or not, or the text itself."""
        return self.plan.can_draft

    @property
    def drafts_text_alone(self) -> bool:
        """Whether drafts come from the text itself, without a drafter."""
        return self.plan.drafts_text_alone

    @property
    def context(self) -> ContextChoice:
        """How long the context is, and why."""
        return self.engine.plan.context

    @property
    def strategy(self) -> Strategy:
        """How to draft from the next answer on."""
        wanted: Strategy = self.plan.strategy.value
        return wanted if not self.is_open or self.engine.has_draft else Strategy("off")

    @property
    def asked(self) -> Strategy | None:
        """The strategy that was asked for, on the command line or in the chat; None = the model's."""
        return self._asked

    def options_set(self) -> dict[str, Any]:
        """The options that were set on the command line and in the chat, by field name."""
        in_chat = {PARAMETERS[name]: value for name, value in self.parameters.items()}
        fields = {
            one.option.rpartition(".")[2]: one.fitted(v) for one, v in in_chat.items() if "." in one.option
        }
        return self._given | fields

    def sampling(self, seed_step: int = 0) -> SamplingOptions:
        """The options of the next answer. seed_step: added to a fixed seed, so that a second try differs."""
        sampling = self.plan.sampling_options()
        if not seed_step or sampling.wants_random_seed:
            return sampling
        return replace(sampling, seed=(int(sampling.seed or 0) + seed_step) % 0xFFFFFFFF)

    def set_parameter(self, name: str, value: ParameterValue) -> bool:
        """Sets a parameter by its Modelfile name; returns whether the model had to be reloaded for it.
        If that fails, the old value is restored and the error is raised.
        """
        before = dict(self.parameters)
        self.parameters[name] = value
        option = PARAMETERS[name].option
        if option == "strategy":
            return self.set_strategy(Strategy.parse(f"chain:{value}" if value else "off"))
        if before == self.parameters:
            return False
        reloads = self.is_open and option.startswith("model.")
        try:
            if reloads:
                self.reopen()
            else:
                self.plan = self._make_plan()
        except BaseException:
            self.parameters = before
            if reloads:
                self.reopen()
            raise
        return reloads

    def set_strategy(self, strategy: Strategy) -> bool:
        """Changes the strategy; returns whether the model had to be reloaded for it.

        Raises ValueError or UnsupportedError, and changes nothing, if that is impossible.
        """
        before, self._asked = (self._asked, self.plan), strategy
        try:
            self.plan = self._make_plan()
            reloaded = self._make_room(strategy)
        except BaseException:
            self._asked, self.plan = before
            if self.is_open and self.engine.closed:
                self.reopen()
            raise
        self.strategy_set = str(strategy)
        return reloaded

    def reopen(self, *, n_draft_max: int | None = None) -> None:
        """Reloads the model with the current options. The caches start empty."""
        if n_draft_max is not None:
            self._given["n_draft_max"] = n_draft_max
        self.close()
        self.plan = self._make_plan()  # the memory of the closed one is free now
        self._engine = self._open()

    def other(self, source: Found) -> RunModel:
        """Another model opened with the same options."""
        return RunModel(source, self._given, self._asked, self.parameters, may_wait=not self.is_open)

    def close(self) -> None:
        """Frees the model."""
        if self._engine is not None:
            self._engine.close()

    # Opening

    def _open(self) -> Engine:
        from eaglecpp.engine import Engine

        plan = self.plan
        if plan.strategy.value.kind == "off" or not plan.can_draft:
            return Engine(plan.without_drafts())
        try:
            return Engine(plan)
        except MismatchError as error:
            if self.source.draft_asked:
                raise
            self.notices.append(f"running without the drafter, which does not fit: {error}")
            return Engine(plan.without_drafts())

    def _make_room(self, strategy: Strategy) -> bool:
        """Loads the drafter, or reloads with room for more nodes or leaves, if the strategy needs it."""
        if strategy.kind == "off":
            return False
        if not self.can_draft:
            raise ValueError(f"strategy {strategy} needs a drafter: run with --draft")
        if not self.is_open:
            return False
        if not self.engine.has_draft:
            self.reopen()
            if not self.engine.has_draft:
                raise ValueError(f"strategy {strategy}: {self.notices[-1]}")
            return True
        _, why = self.engine.resolve(strategy)
        try:  # an empty generation: only the engine knows what it has room for
            self.engine.stream(self.memory.last_tokens, strategy=strategy, max_tokens=0).close()
        except ValueError:
            self.reopen(n_draft_max=strategy.nodes)
            return True
        if "leaves" in why:  # more than there is room for
            self.reopen()
            return True
        return False
