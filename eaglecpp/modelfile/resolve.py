# SPDX-License-Identifier: MIT
"""Resolves a Modelfile and a directory into target, drafter and adapters, as paths or names.

`eaglecpp.references` parses the references. Names of stored and Hub models stay names; the store turns them
into paths. Of the FROM files, only the metadata is read. The metadata shows whether a file is a target,
drafter, projector or LoRA.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eaglecpp.errors import EagleError, InvalidValueError
from eaglecpp.files import exists
from eaglecpp.options import HEAD, TEXT
from eaglecpp.references import ModelName, expand_path, in_order, is_checkpoint, read_reference

from .model import Modelfile
from .syntax import Command, Notice

_PROJECTOR = "clip"
_NO_TARGET = "name one GGUF; a drafter belongs in DRAFT, a LoRA in ADAPTER"


@contextmanager
def _located(command: Command) -> Iterator[None]:
    """Adds the command's line number to errors of searching files inside the `with` block."""
    try:
        yield
    except (OSError, EagleError) as error:
        raise command.error(str(error)) from None


class Resolved:
    """The files that a Modelfile names. Relative paths are below `directory`.

    target, draft: a model's name, or paths
    notices:    notices for the author, including notices about files that were left out
    draft_word: "text" if DRAFT selects drafting from the text itself, "mtp" if DRAFT selects the model's own
        multi-token prediction head
    """

    def __init__(self, modelfile: Modelfile, directory: str | Path) -> None:
        """Raises ModelfileError, with the line, for a missing path, two targets, a FROM that is not a GGUF,
        or a FROM and DRAFT that are the same file.
        """
        self.modelfile = modelfile
        self.directory = Path(directory)
        self.notices: list[Notice] = []
        self.targets: list[Path] = []
        self.drafters: list[Path] = []  # drafters in the FROM directory of the target
        self.projectors: list[Path] = []
        self.adapters: list[Path] = []
        self.draft_word = ""
        self.target = self._base()
        self.draft = self._draft()
        if self.draft is None and self.drafters and not self.draft_word:
            self.draft = self.drafters[-1]
        if isinstance(self.draft, Path) and self.draft not in self.drafters:
            self._refuse_same(self.draft)
        self._add_adapter()

    def _base(self) -> ModelName | tuple[Path, ...]:
        """Resolves the FROM commands. A model's name takes precedence over paths, and the last name counts.
        Several paths are files of one model.
        """
        references = [self._refer(command) for command in self.modelfile.from_]
        for reference, command in reversed([*zip(references, self.modelfile.from_, strict=True)]):
            if isinstance(reference, ModelName):
                if len(references) > 1:
                    self.notices.append(command.notice(f"several FROM lines; using {command.args}"))
                return reference
        paths = [path for path in references if isinstance(path, Path)]
        for path, command in zip(paths, self.modelfile.from_, strict=True):
            self._sort(path, command)
        shards = _shards(self.targets)
        if shards is None:
            targets = ", ".join(map(str, self.targets))
            raise command.error(f"FROM gives {len(self.targets)} targets: {targets}", _NO_TARGET)
        if not shards:
            raise command.error(f"FROM {command.args}: found no target GGUF", _NO_TARGET)
        return shards

    def _refer(self, command: Command) -> ModelName | Path:
        if not command.args.strip():
            raise command.error(f"{_word(command)} needs a value", "a path, a name or hf.co/u/r:Q")
        with _located(command):
            reference = read_reference(command.args, self.directory)
        if isinstance(reference, ModelName) and command.args.startswith(("sha256:", "sha256-")):
            raise command.error(f"{command.args} is a digest", "give the model's name, or the blob's path")
        return reference

    def _sort(self, path: Path, command: Command) -> None:
        """Sorts the files of one FROM path into targets, drafters, projectors and LoRAs by their metadata."""
        from eaglecpp.convert import keys as of_convert

        if is_checkpoint(path):
            how = "convert it with llama.cpp's convert_hf_to_gguf.py and name the result"
            raise command.error(f"FROM {command.args}: expected a GGUF, found a Hugging Face checkpoint", how)
        with _located(command):
            files = _weights(path)
        for file in files:
            keys = _keys(command, file)
            architecture = keys.get("general.architecture")
            if architecture in of_convert.ALL:
                self.drafters.append(file)
            elif architecture == _PROJECTOR:
                self.projectors.append(file)
            elif keys.get("general.type") == "adapter":
                self.adapters.append(file)
            else:
                self.targets.append(file)

    def _draft(self) -> ModelName | Path | None:
        """Resolves the drafter. A pragma takes precedence over DRAFT. The last DRAFT counts, as in Ollama.
        The words `text` and `mtp` do not name files; a file named "text" is written `./text`.
        """
        command = self._last((*self.modelfile.draft, self.modelfile.settings.draft))
        if command is None:
            return None
        if command.args.strip() in (TEXT, HEAD):
            self.draft_word = command.args.strip()
            return None
        reference = self._refer(command)
        if isinstance(reference, ModelName) or is_checkpoint(reference):
            return reference
        return self._only_file(command, reference)

    def _add_adapter(self) -> None:
        """Adds the LoRA of the last ADAPTER, which replaces all earlier adapters, as in Ollama."""
        if (command := self._last(self.modelfile.adapters)) is not None:
            with _located(command):
                path = expand_path(command.args, self.directory)
            self.adapters.append(self._only_file(command, path))

    def _last(self, commands: Iterable[Command | None]) -> Command | None:
        named = [command for command in commands if command is not None]
        if len(named) > 1:
            self.notices.append(named[-1].notice(f"several {_word(named[-1])} lines; using {named[-1].args}"))
        return named[-1] if named else None

    def _only_file(self, command: Command, path: Path) -> Path:
        """Returns the GGUF at a path, or the only GGUF in a folder."""
        with _located(command):
            files = _weights(path)
        if len(files) != 1:
            names = ", ".join(file.name for file in files)
            raise command.error(f"{_word(command)} {command.args}: several GGUF files: {names}", "name one")
        _keys(command, files[0])
        return files[0]

    def _refuse_same(self, draft: Path) -> None:
        """Raises ModelfileError if FROM and the drafter are the same file."""
        bases = [expand_path(command.args, self.directory) for command in self.modelfile.from_]
        for path in (*self.targets, *filter(exists, bases)):
            if os.path.realpath(path) == os.path.realpath(draft):
                command = next(c for c in (*self.modelfile.draft, self.modelfile.settings.draft) if c)
                raise command.error(f"DRAFT must not reference the same local path as FROM: {draft}")


def _keys(command: Command, file: Path) -> dict[str, Any]:
    """Returns the metadata of a GGUF. Raises ModelfileError for a file that is not a GGUF."""
    from eaglecpp.convert import read_keys

    with _located(command):
        return read_keys(file)


def _word(command: Command) -> str:
    return "FROM" if command.name == "model" else command.name.upper()


def _weights(path: Path) -> list[Path]:
    """Returns the GGUF files in a directory, following symlinks. For a path of a file, returns only this
    path.

    Raises FileNotFoundError for a missing path, InvalidValueError for a folder without usable files.
    """
    if not exists(path):
        raise FileNotFoundError(f"no such file: {path}")
    if not path.is_dir():
        return [path]
    root = Path(os.path.realpath(path))
    reals = [Path(os.path.realpath(file)) for file in sorted(path.glob("*.gguf")) if file.is_file()]
    if not reals:
        raise InvalidValueError(f"no GGUF files in {path}")
    for real in reals:
        if not real.is_relative_to(root):
            raise InvalidValueError(f"insecure path: {os.path.relpath(real, root)}")
    return [path / real.relative_to(root) for real in reals]


def _shards(targets: Sequence[Path]) -> tuple[Path, ...] | None:
    """Returns the parts of a split target in order; () if there is no target, None if the files belong to
    several models.
    """
    if len(targets) <= 1:
        return tuple(targets)
    by_name = {path.name: path for path in targets if path.parent == targets[0].parent}
    try:
        names = in_order(by_name)
    except ValueError:
        return None
    return tuple(by_name[name] for name in names) if len(names) == len(targets) else None
