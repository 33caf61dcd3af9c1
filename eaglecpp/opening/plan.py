# SPDX-License-Identifier: MIT
"""`OpeningPlan`: target, drafter, adapters, strategy and options for opening a model, each with its origin.

    plan = plan_opening("smollm2", options={"n_ctx": 2048})
    with Engine(plan) as engine: ...

Each of these sources overrides the sources before it: a command's own defaults, Ollama's defaults (for a
model by name), the model's PARAMETERs, the model's `#eaglecpp:` pragmas, the model's adapters, option
objects, single options, changes in a chat. An option object replaces all of the model's options of the same
class. Only the model's adapters stay, because adapters are weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from eaglecpp.errors import InvalidValueError
from eaglecpp.modelfile import parameters as params
from eaglecpp.opening.context import (
    beyond_training,
    choose_n_ctx,
    free_for_cache,
    fuses_attention,
    unknown_keys,
)
from eaglecpp.opening.find import ModelFiles, find_here, with_learned
from eaglecpp.options import (
    GROUPS,
    TEXT,
    DraftOptions,
    ModelOptions,
    SamplingOptions,
    Strategy,
    describe,
    split,
)

_ASKED = "asked for"
_USUAL = "Ollama's default"


@dataclass(frozen=True)
class Setting:
    """A value, and the origin of the value in words."""

    value: Any
    origin: str


@dataclass(frozen=True)
class OpeningPlan:
    """The files, strategy and options for opening a model.

    files:    files and Modelfile settings of the model
    strategy: the drafting strategy
    settings: the options that are set, by "group.field"
    context:  the context length and its reason
    """

    files: ModelFiles
    strategy: Setting
    settings: Mapping[str, Setting]
    context: Setting

    @property
    def target(self) -> Path:
        """The target's GGUF; for a split GGUF, its first part."""
        return self.files.target

    @property
    def draft(self) -> Path | None:
        """The drafter's GGUF; None without a drafter."""
        return self.files.draft

    @property
    def can_draft(self) -> bool:
        """True if there is a source of drafts: a drafter, or the text itself."""
        return self.draft is not None or self.drafts_text_alone

    @property
    def drafts_text_alone(self) -> bool:
        """True if drafts come from the text itself, without a drafter."""
        return self.draft is None and self.draft_options().text_drafts == "on"

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user."""
        of_context = beyond_training(self.target, _values(self.settings, "model"))
        of_draft = () if self.draft is None else unknown_keys(self.draft)
        return (*map(str, self.files.modelfile.notices), *self.files.notices, *of_context, *of_draft)

    def model_options(self) -> ModelOptions:
        """Returns the options for loading the target. This method, `draft_options` and `sampling_options`
        raise TypeError or ValueError for a wrong value.
        """
        return ModelOptions(**_values(self.settings, "model"))

    def draft_options(self) -> DraftOptions:
        """Returns the options for drafting."""
        return DraftOptions(**_values(self.settings, "draft"))

    def sampling_options(self) -> SamplingOptions:
        """Returns the default options of a generation."""
        return SamplingOptions(**_values(self.settings, "sampling"))

    def with_context(self) -> OpeningPlan:
        """Returns the plan with a context length that is chosen again, for the memory that is free now. A
        requested length is kept.
        """
        if self.context.origin == _ASKED:
            return self
        context = _choose_context(self.files, self.settings)
        return replace(self, settings={**self.settings, "model.n_ctx": context}, context=context)

    def without_drafts(self) -> OpeningPlan:
        """Returns the same plan without drafting. The plan's drafter is not loaded."""
        return replace(
            self, files=self.files.using(), strategy=Setting(Strategy("off"), self.strategy.origin)
        )

    def rows(self, template: str = "") -> list[tuple[str, str]]:
        """Returns the plan as rows of name and value, for the user. template: the chat template in use, with
        the reason.
        """
        drafter = f"{self.draft} ({self.files.draft_origin})" if self.draft is not None else "none"
        rows = [
            ("target", f"{self.target} ({self.files.target_origin})"),
            ("drafter", "none, drafts come from the text itself" if self.drafts_text_alone else drafter),
            *(("adapter", f"{path} (scale {scale:g})") for path, scale in self.model_options().lora),
            ("strategy", f"{self.strategy.value} ({self.strategy.origin})"),
        ]
        rows += [("template", template)] if template else []
        return [*rows, *self._option_rows()]

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON values."""
        return {
            "reference": self.files.reference,
            "target": str(self.target),
            "target_origin": self.files.target_origin,
            "draft": None if self.draft is None else str(self.draft),
            "draft_origin": self.files.draft_origin,
            "strategy": {"value": str(self.strategy.value), "origin": self.strategy.origin},
            "options": {key: asdict(setting) for key, setting in self.settings.items()},
        }

    def _option_rows(self) -> Iterator[tuple[str, str]]:
        """Yields name and value of each option that was requested or differs from the engine's default."""
        usual = {o.key: o.default for cls in GROUPS.values() for o in describe(cls)}
        for key, setting in sorted(self.settings.items()):
            if key != "model.lora" and (setting.origin != _USUAL or setting.value != usual[key]):
                yield "option", f"{key.partition('.')[2]} {_text(setting.value)} ({setting.origin})"


def plan_opening(
    reference: str | os.PathLike[str],
    draft: str | os.PathLike[str] | Literal[False] | None = None,
    *,
    strategy: str | Strategy | None = None,
    find: Callable[..., ModelFiles] = find_here,
    **rest: Any,
) -> OpeningPlan:
    """Returns the plan for the model that `reference` names. rest: further arguments of `make_plan`.

    draft:    a drafter's reference, "text" for drafts from the text itself, None for the model's own drafter;
    False, "off" and "none" mean strategy "off"
    strategy: None for the model's own strategy; "off" omits the model's own drafter
    find:     function that finds the files: `find_here`, or `fetch` with its other arguments bound
    """
    requested = None if strategy is None else Strategy.parse(strategy)
    if Strategy.is_off(draft):
        if requested is not None and requested.kind != "off":
            raise InvalidValueError(f"draft {draft!r} contradicts strategy {requested}; remove one of them")
        draft, requested = None, Strategy("off")
    is_off = requested is not None and requested.kind == "off"
    plan = make_plan(find(reference, draft, wants_draft=not is_off), strategy=requested, **rest)
    return plan.without_drafts() if is_off and draft is None else plan


def make_plan(
    files: ModelFiles,
    *,
    strategy: Strategy | None = None,
    options: Mapping[str, Any] | None = None,
    objects: Sequence[Any] = (None, None, None),
    defaults: Mapping[str, Any] | None = None,
    later: Mapping[str, Any] | None = None,
    choose_context: bool = False,
) -> OpeningPlan:
    """Returns the plan for the given files.

    options:        single options by field name
    objects:        ModelOptions, DraftOptions and SamplingOptions, or None
    defaults:       a command's defaults by "group.field", used if neither the model nor the user sets the
    option
    later:          changes made in a chat, by "group.field"
    choose_context: choose a context length for the model and the free memory, unless a length is requested
    Raises TypeError for an unknown option, ValueError for options that contradict each other.
    """
    settings = _of_model(files, defaults or {})
    of_model = settings.pop("strategy", None)
    _apply_objects(settings, objects)
    for group, values in zip(GROUPS, split(options or {}, *GROUPS.values()), strict=True):
        settings |= {f"{group}.{name}": Setting(value, _ASKED) for name, value in values.items()}
    settings |= {key: Setting(value, "set in this chat") for key, value in (later or {}).items()}
    files = with_learned(files, learns=bool(_value(settings, "draft.learn")))
    if files.drafts_text:
        DraftOptions(**_values(settings, "draft"))  # invalid values are reported before contradictions
        _ask_for_text(settings)
    context = Setting(_value(settings, "model.n_ctx"), _ASKED)  # the value is validated later
    if choose_context and context.value in (None, 0):
        context = settings["model.n_ctx"] = _choose_context(files, settings)
    can_draft = files.draft is not None or _value(settings, "draft.text_drafts") == "on"
    if strategy is not None:
        chosen = Setting(strategy, _ASKED)
    # a Modelfile may name a strategy although the model has no drafter
    elif of_model is not None and can_draft:
        chosen = Setting(Strategy.parse(of_model.value), of_model.origin)
    else:
        chosen = Setting(Strategy(), "the default")
    return OpeningPlan(files, chosen, settings, context)


def _choose_context(files: ModelFiles, settings: Mapping[str, Setting]) -> Setting:
    options = _values(settings, "model")
    options["flash_attn"] = "on" if fuses_attention(options) else "off"
    n_free = free_for_cache(options)
    return Setting(*choose_n_ctx(files.target, files.draft, options, files.n_weight_bytes, n_free))


def _of_model(model: ModelFiles, defaults: Mapping[str, Any]) -> dict[str, Setting]:
    """Returns the settings from a command's defaults and from a stored model. The model's settings take
    precedence.
    """
    usual = params.parameter_options({})
    settings = {
        key: Setting(value, _USUAL if usual.get(key) == value else "the command's default")
        for key, value in defaults.items()
    }
    if model.kind in ("path", "package"):
        return settings
    name, modelfile = model.reference, model.modelfile
    settings |= {key: Setting(value, _USUAL) for key, value in usual.items()}
    own = {params.PARAMETERS[parameter].key for parameter in modelfile.parameters}
    for key, value in params.parameter_options(modelfile.parameters).items():
        if key in own:
            settings[key] = Setting(value, f"PARAMETER of {name}")
    for key, value in modelfile.settings.options.items():
        settings[key] = Setting(value, f"#eaglecpp: of {name}")
    if model.adapters:
        settings["model.lora"] = Setting(model.adapters, f"ADAPTER of {name}")
    if model.projectors:
        settings["model.mmproj"] = Setting(str(model.projectors[0]), f"projector of {name}")
    return settings


def _apply_objects(settings: dict[str, Setting], objects: Sequence[Any]) -> None:
    for group, options in zip(GROUPS, objects, strict=True):
        if options is None:
            continue
        for key in [key for key in settings if key.startswith(f"{group}.")]:
            if key not in ("model.lora", "model.mmproj") or getattr(options, key.removeprefix("model.")):
                del settings[key]
        for option in describe(options):
            if (value := getattr(options, option.name)) != option.default:
                settings[f"{group}.{option.name}"] = Setting(value, _ASKED)


def _ask_for_text(settings: dict[str, Setting]) -> None:
    """Turns text drafts on in the settings, because the drafter "text" was requested."""
    wanted = settings.get("draft.text_drafts")
    if wanted is not None and wanted.value == "off" and wanted.origin == _ASKED:
        raise InvalidValueError(f"draft '{TEXT}' contradicts text_drafts 'off'; remove one of them")
    settings["draft.text_drafts"] = Setting("on", _ASKED)


def _values(settings: Mapping[str, Setting], group: str) -> dict[str, Any]:
    """Returns the values of a group's options that are set, by field name."""
    prefix = f"{group}."
    return {k.removeprefix(prefix): setting.value for k, setting in settings.items() if k.startswith(prefix)}


def _value(settings: Mapping[str, Setting], key: str) -> Any:
    return settings[key].value if key in settings else None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)
