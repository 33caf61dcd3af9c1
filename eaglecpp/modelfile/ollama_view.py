# SPDX-License-Identifier: MIT
"""How Ollama sees a Modelfile: its create request, and what would keep it from working there.

eaglecpp itself uses `resolve`; this module is for `/api/create` and `check --ollama`. Rules
and wording are Ollama's (ollama/ollama: parser/parser.go). Nothing is hashed or sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .errors import ModelfileError
from .find_files import expand_path, model_files, same_path
from .model import Modelfile
from .parameters import ParameterValue
from .resolve import located, same_path_error
from .syntax import Command

__all__ = ["create_request", "ollama_problems", "require_ollama"]


def create_request(modelfile: Modelfile, directory: str | Path) -> dict[str, Any]:
    """What Ollama would send to create this model, empty fields left out; file lists hold absolute paths.

    Raises ModelfileError with Ollama's words where Ollama refuses.
    """
    return _OllamaView(modelfile, Path(directory)).request()


def require_ollama(modelfile: Modelfile, directory: str | Path) -> None:
    """For a file read with `strict`: raises ModelfileError for what `ollama create` refuses as well."""
    from eaglecpp.chat.gotemplate.ollama import Template
    from eaglecpp.errors import TemplateError

    create_request(modelfile, directory)
    if modelfile.template is not None:
        try:
            Template.parse(modelfile.template)
        except TemplateError as error:
            raise ModelfileError(f"TEMPLATE: {error}", file=modelfile.file) from None


def ollama_problems(text: str | bytes, directory: str | Path, *, file: str | None = None) -> list[str]:
    """Why Ollama would refuse this Modelfile or run it in another way; empty when it would do neither."""
    try:
        modelfile = Modelfile.from_text(text, file=file, strict=True)
        request = create_request(modelfile, directory)
    except ModelfileError as error:
        return [str(error)]
    problems = [str(notice) for notice in modelfile.notices]
    try:
        require_ollama(modelfile, directory)
    except ModelfileError as error:
        problems.append(str(error))
    if "draft_files" in request:
        problems.append(
            "DRAFT: Ollama starts every drafter GGUF that is not dflash as an MTP drafter, including "
            "EAGLE drafters; write '#eaglecpp: draft PATH' instead, which Ollama skips"
        )
    return problems


class _OllamaView:
    def __init__(self, modelfile: Modelfile, directory: Path) -> None:
        self.modelfile = modelfile
        self.directory = directory

    def request(self) -> dict[str, Any]:
        modelfile = self.modelfile
        names, targets = self._targets()
        drafts = self._drafts(targets)
        adapters: list[Path] = []
        for command in modelfile.adapters:  # the last one replaces the others
            adapters = self._files(command)
        request: dict[str, Any] = {
            "from": names[-1] if names else None,
            "files": self._texts(file for _, files in targets for file in files),
            "draft_files": self._texts(file for files in drafts for file in files),
            "adapters": self._texts(adapters),
            "template": modelfile.template,
            "system": modelfile.system,
            "renderer": modelfile.renderer,
            "parser": modelfile.parser,
            "requires": modelfile.requires,
            "license": list(modelfile.license),
            "parameters": {name: _json_value(value) for name, value in modelfile.parameters.items()},
            "messages": [{"role": turn.role, "content": turn.content} for turn in modelfile.messages],
        }
        return {key: value for key, value in request.items() if value}

    def _targets(self) -> tuple[list[str], list[tuple[Path, list[Path]]]]:
        names: list[str] = []
        targets: list[tuple[Path, list[Path]]] = []
        for command in self.modelfile.from_:
            with located(self.modelfile, command):
                path = expand_path(command.args, self.directory)
                if path.exists():
                    targets.append((path, model_files(path)))
                else:
                    names.append(command.args)
        return names, targets

    def _drafts(self, targets: Sequence[tuple[Path, list[Path]]]) -> list[list[Path]]:
        drafts = []
        for command in self.modelfile.draft:
            files = self._files(command)
            path = expand_path(command.args, self.directory)
            if any(same_path(path, target) for target, _ in targets):
                raise same_path_error(self.modelfile, command, path)
            drafts.append(files)
        return drafts

    def _files(self, command: Command) -> list[Path]:
        with located(self.modelfile, command):
            return model_files(expand_path(command.args, self.directory))

    def _texts(self, paths: Iterable[Path]) -> list[str]:
        return sorted({str(path) for path in paths})


def _json_value(value: ParameterValue) -> Any:
    return list(value) if isinstance(value, tuple) else value
