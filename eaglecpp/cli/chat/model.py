# SPDX-License-Identifier: MIT
"""`RunModel`: a model's plan and its engine, which is opened at its first use and reopened when options
change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.conversation import Conversation
from eaglecpp.cli.open_engine import run_defaults
from eaglecpp.cli.options import in_flags
from eaglecpp.cli.terminal import patience
from eaglecpp.errors import InvalidValueError, UnsupportedError
from eaglecpp.modelfile.parameters import PARAMETERS, ParameterValue
from eaglecpp.opening.find import ModelFiles
from eaglecpp.opening.plan import OpeningPlan, make_plan
from eaglecpp.options import SamplingOptions, Strategy, describe

if TYPE_CHECKING:
    from eaglecpp.engine.engine import Engine
    from eaglecpp.engine.stream import Stream

_SAMPLING = {one.name for one in describe(SamplingOptions)}


class RunModel:
    """The model of a chat.

    given: options on the command line by field name; asked: strategy on the command line, None = the model's

    plan: how the model is opened with the current options; updated when an option changes
    elsewhere: the server's address, and whether its model drafts and reads pictures. If it is set, methods
        that need the model's files raise UnsupportedError
    parameters, strategy_set: parameters (by Modelfile name) and strategy that were set in the chat
    load_ms: milliseconds that opening took
    """

    def __init__(
        self,
        source: ModelFiles,
        given: Mapping[str, Any],
        asked: Strategy | None = None,
        elsewhere: tuple[str, bool, bool] | None = None,
    ) -> None:
        self.source = source
        self.parameters: dict[str, ParameterValue] = {}
        self.strategy_set = ""
        self.asked = self._asked = asked
        self._given = dict(given)
        self._elsewhere = elsewhere
        self.renew(False)
        self.notices: list[str] = []
        self.load_ms = 0.0
        self._engine: Engine | None = None

    @property
    def is_open(self) -> bool:
        """True if the model is loaded in this process."""
        return self._engine is not None

    @property
    def is_here(self) -> bool:
        """True if the model's files are on this machine."""
        return self._elsewhere is None

    @property
    def can_draft(self) -> bool:
        """True if the model can draft."""
        return self._elsewhere[1] if self._elsewhere else self.plan.can_draft

    @property
    def reads_pictures(self) -> bool:
        """True if the model is opened with a projector."""
        return self._elsewhere[2] if self._elsewhere else bool(self.plan.model_options().mmproj)

    @property
    def engine(self) -> Engine:
        """The engine, opened at its first use. Raises the errors of `Engine`."""
        if self._engine is None:
            self._engine = self._open()
        return self._engine

    def conversation(self) -> Conversation:
        """Returns an empty conversation with the model's system prompt and examples."""
        modelfile = self.plan.files.modelfile
        return Conversation(modelfile.system or "", modelfile.messages)

    def answer(self, conversation: Conversation, options: Mapping[str, Any]) -> Stream:
        """Starts an answer in this process."""
        own = {**options, "strategy": self.strategy}
        return self.engine.default_session.answer(conversation, own, needs_template=False, truncate=True)

    # Options of the model

    def settings_of(self, parameters: Mapping[str, ParameterValue], strategy: str) -> dict[str, Any]:
        """Returns the attributes for settings that were saved with a chat. Options on the command line
        override the saved settings.
        """
        fields = {name: PARAMETERS[name].key.rpartition(".")[2] for name in parameters}
        kept = {name: value for name, value in parameters.items() if fields[name] not in self._given}
        asked = self._asked or (Strategy.parse(strategy) if strategy else None)
        return {"parameters": kept, "strategy_set": strategy, "asked": asked}

    def go_on(self, parameters: Mapping[str, ParameterValue], strategy: str) -> None:
        """Restores the settings that were saved with a chat. This must happen before the model is opened."""
        vars(self).update(self.settings_of(parameters, strategy))
        self.plan = self._make_plan()

    def _set_here(self) -> dict[str, ParameterValue]:
        """Returns the options set in the chat, by "group.field"."""
        fitted = {PARAMETERS[name].key: PARAMETERS[name].fitted(v) for name, v in self.parameters.items()}
        return {option: value for option, value in fitted.items() if "." in option}

    def _make_plan(self) -> OpeningPlan:
        options: dict[str, Any] = {
            "options": self._given,
            "defaults": run_defaults(),
            "later": self._set_here(),
        }
        return make_plan(self.source, strategy=self.asked, choose_context=self.is_here, **options)

    @property
    def strategy(self) -> Strategy:
        """The strategy of the next answer."""
        wanted: Strategy = self.plan.strategy.value
        return wanted if not self.is_open or self.engine.has_draft else Strategy("off")

    def options_set(self) -> dict[str, Any]:
        """Returns the options set on the command line and in the chat, by field name."""
        return self._given | {name.rpartition(".")[2]: value for name, value in self._set_here().items()}

    @property
    def says_how_to_open(self) -> bool:
        """True if options require another way of opening the model than a server's, which opens the stored
        model as it is.
        """
        return self.source.name is None or not self.options_set().keys() <= _SAMPLING

    def sampling_set(self, seed_step: int) -> dict[str, Any]:
        """Returns the sampling options that were set. `max_repeats` is always included, because a server has
        no default for this option.

        seed_step: added to a fixed seed, so that a second try gives another answer
        """
        sampling = self.plan.sampling_options()
        options = {name: value for name, value in self.options_set().items() if name in _SAMPLING}
        if seed_step and not sampling.wants_random_seed:
            options["seed"] = SamplingOptions.fixed_seed(int(sampling.seed or 0) + seed_step)
        return {"max_repeats": sampling.max_repeats} | options

    def set_parameter(self, name: str, value: ParameterValue) -> bool:
        """Sets a parameter by its Modelfile name. Returns the result of `change`, and raises its errors."""
        option, changed = PARAMETERS[name].key, {**self.parameters, name: value}
        if option == "strategy":
            return self.set_strategy(Strategy.parse(f"chain:{value}" if value else "off"))
        return self.change(option.startswith("model.") and changed != self.parameters, parameters=changed)

    def set_strategy(self, strategy: Strategy) -> bool:
        """Changes the strategy, like `change`. Raises InvalidValueError for a strategy that needs a drafter
        if the model has none.
        """
        if strategy.kind != "off" and not self.can_draft:
            raise InvalidValueError(f"strategy {strategy} needs a drafter: run with --draft")
        return self.change(not self._has_room(strategy), asked=strategy, strategy_set=str(strategy))

    def change(self, reloads: bool, **values: Any) -> bool:
        """Changes the model's source, parameters or strategy. If this raises an error, all three keep their
        old values.

        reloads: an open model must be loaded again for this change. Returns True if the model was reloaded.
        """
        if "source" in values:
            self._check_here()
        before = {name: getattr(self, name) for name in values}
        reloads = reloads and self.is_open
        vars(self).update(values)
        try:
            self.renew(reloads)
        except BaseException:
            vars(self).update(before)
            self.renew(reloads)
            raise
        return reloads

    def _has_room(self, strategy: Strategy) -> bool:
        """Returns True if the engine was opened with enough room for the strategy's drafts."""
        if not self.is_open or strategy.kind == "off":
            return True
        shared, n_max = self.engine.shared, self.engine.native.n_draft_max
        if not shared.has_draft:
            return False
        resolved, _ = shared.resolve_strategy(strategy)
        return resolved.nodes <= n_max and resolved.n_leaves <= shared.n_leaves

    def renew(self, reloads: bool = True) -> None:
        """Makes a new plan, and reloads the model by this plan. The caches are empty afterwards."""
        if self.says_how_to_open:
            self._check_here()
        if reloads:
            self.close()
        self.plan = self._make_plan()  # the new plan is made after closing, when the memory is free
        if reloads:
            self._engine = self._open()

    def close(self) -> None:
        """Frees the model."""
        if self._engine is not None:
            self._engine.close()

    def _open(self) -> Engine:
        """Opens the model, without its drafter if drafting is off or the drafter does not fit."""
        from eaglecpp.engine.engine import open_fitting

        self._check_here()
        started = time.perf_counter()
        self.notices += map(in_flags, self.plan.notices)
        is_off = self.plan.strategy.value.kind == "off" or not self.plan.can_draft
        with patience(f"loading {self.source.label} (and measuring it the first time) ..."):
            engine, without = open_fitting(self.plan.without_drafts() if is_off else self.plan)
        self.notices += [without] if without else []
        self.load_ms = 1000 * (time.perf_counter() - started)
        self.notices += engine.shared.chat.template.notices
        return engine

    def _check_here(self) -> None:
        if self._elsewhere:
            address = self._elsewhere[0]
            raise UnsupportedError(f"the server {address} decides how to open the model; use --no-server")
