# SPDX-License-Identifier: MIT
"""`ChatSettings`: what the user set for a chat, on the command line and with commands such as `/set`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eaglecpp.cli.open_engine import run_defaults
from eaglecpp.modelfile.parameters import PARAMETERS, ParameterValue
from eaglecpp.opening.find import ModelFiles
from eaglecpp.opening.plan import OpeningPlan, make_plan
from eaglecpp.options import SamplingOptions, Strategy, describe

SAMPLING = {one.name for one in describe(SamplingOptions)}


@dataclass
class ChatSettings:
    """Settings for opening the model, and for generating and showing answers.

    given:        options on the command line, by field name
    asked:        strategy on the command line; None = the model's
    parameters:   parameters that were set in the chat, by Modelfile name
    strategy_set: strategy that was set in the chat, or ""
    strategy:     strategy that applies; None = the model's
    think:        None = the template decides
    format:       arguments of `Session.chat` for the output format
    figures:      statistics after an answer: "all", "line", or "none"
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    asked: Strategy | None = None
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    strategy_set: str = ""
    strategy: Strategy | None = None
    think: bool | str | None = None
    format: dict[str, Any] = field(default_factory=dict)
    figures: str = "line"
    history: bool = True

    def __post_init__(self) -> None:
        self.strategy = self.strategy or self.asked

    def restored(self, parameters: Mapping[str, ParameterValue], strategy: str) -> ChatSettings:
        """Returns these settings with those that were saved with a chat. Options on the command line override
        the saved settings.
        """
        fields = {name: PARAMETERS[name].key.rpartition(".")[2] for name in parameters}
        kept = {name: value for name, value in parameters.items() if fields[name] not in self.given}
        own = self.asked or (Strategy.parse(strategy) if strategy else None)
        return replace(self, parameters=kept, strategy_set=strategy, strategy=own)

    def _set_here(self) -> dict[str, ParameterValue]:
        """Returns the options set in the chat, by "group.field"."""
        fitted = {PARAMETERS[name].key: PARAMETERS[name].fitted(v) for name, v in self.parameters.items()}
        return {option: value for option, value in fitted.items() if "." in option}

    @property
    def options(self) -> dict[str, Any]:
        """The options set on the command line and in the chat, by field name."""
        return {**self.given} | {name.rpartition(".")[2]: v for name, v in self._set_here().items()}

    def plan(self, source: ModelFiles, *, choose_context: bool) -> OpeningPlan:
        """Returns how to open a model with these settings."""
        options: dict[str, Any] = {"options": self.given, "defaults": run_defaults()}
        options |= {"later": self._set_here(), "choose_context": choose_context}
        return make_plan(source, strategy=self.strategy, **options)

    def sampling(self, plan: OpeningPlan, seed_step: int) -> dict[str, Any]:
        """Returns the sampling options that were set. `max_repeats` is always included, because a server has
        no default for this option.

        seed_step: added to a fixed seed, so that a second try gives another answer
        """
        sampling = plan.sampling_options()
        options = {name: value for name, value in self.options.items() if name in SAMPLING}
        if seed_step and not sampling.wants_random_seed:
            options["seed"] = SamplingOptions.fixed_seed(int(sampling.seed or 0) + seed_step)
        return {"max_repeats": sampling.max_repeats} | options
