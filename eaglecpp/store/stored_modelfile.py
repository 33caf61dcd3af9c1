# SPDX-License-Identifier: MIT
"""A stored model as a `Modelfile`: what `show --modelfile` prints, a FROM inherits, and the engine is told.

Values that this version does not know (a parameter of a newer Ollama) become notices, never errors: a model
that is stored must stay usable.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglecpp.chat.message import Message
from eaglecpp.modelfile.errors import Notice
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.parameters import DEPRECATED, RETIRED, ParameterError, ParameterValue, from_json
from eaglecpp.modelfile.pragmas import settings, without_strange_parameters, without_strange_pragmas
from eaglecpp.modelfile.syntax import Command
from eaglecpp.store.errors import StoreError
from eaglecpp.store.manifest import PRAGMAS
from eaglecpp.store.model import StoredModel

__all__ = ["stored_modelfile", "templates_of"]


def stored_modelfile(model: StoredModel) -> Modelfile:
    """The Modelfile that would make this model again, with the paths of its blobs; of a model that was not
    made here, without what a stranger may not decide. Raises StoreError.
    """
    parameters, notices = _parameters(model)
    config = model.config
    pragmas = tuple(Command(name, value) for name, value in model.pragmas())
    parameters, pragmas, dropped = _trusted(model, parameters, pragmas)
    targets = model.target_files()[:1] if model.manifest.of_kind("model") else ()
    draft = model.draft_file()
    templates, systems = model.texts("template", "prompt"), model.texts("system")
    return Modelfile(
        from_=_commands("model", (*targets, *model.files("projector"))),
        draft=_commands("draft", () if draft is None else (draft,)),
        adapters=_commands("adapter", model.files("adapter")),
        template=templates[-1] if templates else None,
        system=systems[-1] if systems else None,
        messages=_messages(model),
        parameters=parameters,
        license=model.texts("license"),
        renderer=config.text("renderer") or None,
        parser=config.text("parser") or None,
        requires=config.text("requires") or None,
        pragmas=pragmas,
        settings=settings(pragmas, str(model.name)),
        notices=(*notices, *dropped, *_formats(model)),
    )


def templates_of(model: StoredModel, modelfile: Modelfile) -> tuple[str | None, str | None]:
    """The template that an author wrote, and the one that Ollama chose; at most one of them is there.

    modelfile: `stored_modelfile(model)`
    """
    chosen = not model.own or bool(model.template_origin)
    return (None, modelfile.template) if chosen else (modelfile.template, None)


def _commands(name: str, paths: tuple[Path, ...]) -> tuple[Command, ...]:
    return tuple(Command(name, str(path)) for path in paths)


def _parameters(model: StoredModel) -> tuple[dict[str, ParameterValue], list[Notice]]:
    values = model.json("params")
    if values is None:
        return {}, []
    if not isinstance(values, Mapping):
        raise StoreError(f"{model.name}: params: expected a JSON object, found {type(values).__name__}")
    parameters: dict[str, ParameterValue] = {}
    notices = []
    for name, value in values.items():
        if value is None or name in DEPRECATED or name in RETIRED:
            continue
        try:
            parameters[name] = from_json(name, value)
        except ParameterError as error:
            notices.append(Notice(f"{model.name}: {error}; ignored"))
    return parameters, notices


def _trusted(
    model: StoredModel, parameters: dict[str, ParameterValue], pragmas: tuple[Command, ...]
) -> tuple[dict[str, ParameterValue], tuple[Command, ...], list[Notice]]:
    """Parameters and pragmas that may take effect, and what is said about the others."""
    left_out: list[str] = []
    if not model.made_here("params"):
        parameters, dropped = without_strange_parameters(parameters)
        left_out += [f"parameter {text}" for text in dropped]
    if not model.made_here(PRAGMAS):
        pragmas, dropped = without_strange_pragmas(pragmas)
        left_out += [f"pragma {text}" for text in dropped]
    way = "; to allow it, give it on the command line or in your own Modelfile"
    return (
        parameters,
        pragmas,
        [Notice(f"{model.name} was not made here, ignored: {t}{way}") for t in left_out],
    )


def _formats(model: StoredModel) -> list[Notice]:
    """What explains a prompt that differs from Ollama's: code of Ollama's that a model names."""
    named = [f"{word.upper()} {name}" for word in ("renderer", "parser") if (name := model.config.text(word))]
    if not named:
        return []
    built_in = "is built into Ollama" if len(named) == 1 else "are built into Ollama"
    return [
        Notice(f"{model.name}: {' and '.join(named)} {built_in}; eaglecpp uses the model's chat template")
    ]


def _messages(model: StoredModel) -> tuple[Message, ...]:
    values = model.json("messages")
    if values is None:
        return ()
    if not isinstance(values, list) or not all(_is_message(value) for value in values):
        raise StoreError(f"{model.name}: messages: expected a list of objects with role and content")
    return tuple(Message(value["role"], value["content"]) for value in values)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))
