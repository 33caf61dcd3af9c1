# SPDX-License-Identifier: MIT
"""A stored model as a `Modelfile`: what `show --modelfile` prints, a FROM inherits, and the engine gets.

Values that this version does not know (a parameter of a newer Ollama) become notices, never errors: a model
that is stored must stay usable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from eaglecpp.chat.message import Message
from eaglecpp.modelfile.errors import Notice
from eaglecpp.modelfile.model import Modelfile, built_in
from eaglecpp.modelfile.parameters import DEPRECATED, ParameterError, ParameterValue, from_json
from eaglecpp.modelfile.pragmas import without_untrusted
from eaglecpp.modelfile.syntax import Command
from eaglecpp.store.model import StoredModel

_TO_ALLOW = "to allow it, give it on the command line or in your own Modelfile"


class _Turn(msgspec.Struct):
    role: str
    content: str


def stored_modelfile(model: StoredModel) -> Modelfile:
    """The Modelfile that would make this model again, with the paths of its blobs; of a model that was not
    made here, without what an untrusted one may not decide. Raises StoreError.
    """
    parameters, notices = _parameters(model)
    pragmas = tuple(Command(name, value, file=str(model.name)) for name, value in model.pragmas())
    if "settings" not in model.decided_here:
        parameters, pragmas, left_out = without_untrusted(parameters, pragmas)
        notices += [f"{model.name} was not made here, ignored: {text}; {_TO_ALLOW}" for text in left_out]
    for word in ("renderer", "parser"):
        if name := model.text(word):
            notices.append(f"{model.name}: {built_in(word, name)}")
    targets = model.target_files()[:1] if model.manifest.of_kind("model") else ()
    draft = model.draft_file()
    templates, systems = model.texts("template", "prompt"), model.texts("system")
    return Modelfile(
        from_=_commands("model", (*targets, *model.files("projector"))),
        draft=_commands("draft", () if draft is None else (draft,)),
        adapters=_commands("adapter", model.files("adapter")),
        template=templates[-1] if templates else None,
        system=systems[-1] if systems else None,
        messages=tuple(Message(turn.role, turn.content) for turn in model.json("messages", list[_Turn], [])),
        parameters=parameters,
        license=model.texts("license"),
        renderer=model.text("renderer") or None,
        parser=model.text("parser") or None,
        requires=model.text("requires") or None,
        pragmas=pragmas,
        notices=tuple(map(Notice, notices)),
    )


def _commands(name: str, paths: tuple[Path, ...]) -> tuple[Command, ...]:
    return tuple(Command(name, str(path)) for path in paths)


def _parameters(model: StoredModel) -> tuple[dict[str, ParameterValue], list[str]]:
    parameters: dict[str, ParameterValue] = {}
    notices = []
    for name, value in model.json("params", dict[str, Any], {}).items():
        if value is None or name in DEPRECATED:
            continue
        try:
            parameters[name] = from_json(name, value)
        except ParameterError as error:
            notices.append(f"{model.name}: {error}; ignored")
    return parameters, notices
