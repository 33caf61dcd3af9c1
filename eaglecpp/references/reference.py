# SPDX-License-Identifier: MIT
"""The only reader of references: from a text to what it names, looked up nowhere but on disk.

    hf.co/OWNER/NAME[:QUANT]              the Hugging Face Hub; also huggingface.co/ and hf://, or with -hf
    PATH                                  what exists, begins with ./ ../ / or ~, or ends as weights do
    [HOST/][NAMESPACE/]MODEL[:TAG]        a stored model, ours or Ollama's; else in Ollama's registry

They are tried in this order, so a file or folder takes precedence over a name. `owner/name` alone is a
name; a reference to the Hub says so. Where a drafter is expected, the words `text` (drafts from the text
itself) and `auto` (the one that fits) are read before any of these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eaglecpp.data_dir import expanded
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.files import check_regular, exists, open_regular
from eaglecpp.references.names import HUB_HOSTS, ModelName, ModelNameError, canonical


def expand_path(value: str, directory: Path) -> Path:
    """The absolute path a value stands for; `~` and `~user` are homes, the rest is relative to `directory`.

    Raises InvalidValueError for an unknown user.
    """
    return Path(os.path.abspath(directory / expanded(value)))  # noqa: PTH100 - resolve() would follow symlinks


_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.IGNORECASE)


def in_order(names: Iterable[str]) -> list[str]:
    """The names of one split file in the order of the parts.

    Raises ValueError when they are not exactly the parts of one file.
    """
    matches = [_PART.fullmatch(name) for name in names]
    parts = sorted((m for m in matches if m is not None), key=lambda m: int(m[2]))
    wholes = {(m[1].lower(), int(m[3])) for m in parts}
    if (
        None in matches
        or len(wholes) != 1
        or [int(m[2]) for m in parts] != [*range(1, next(iter(wholes))[1] + 1)]
    ):
        raise ValueError("not all parts of one split file")
    return [m[0] for m in parts]


def all_parts(name: str) -> list[str]:
    """The names of all parts of the split file that `name` is a part of; just `name` for a whole file."""
    match = _PART.fullmatch(name)
    if match is None or int(match[3]) == 0:
        return [name]
    return [f"{match[1]}-{part:05}-of-{match[3]}.gguf" for part in range(1, int(match[3]) + 1)]


def part_paths(path: Path) -> list[Path]:
    """The parts of a file on the disk that are there, next to it; just `path` when none is."""
    parts = [path.with_name(name) for name in all_parts(path.name)]
    return [part for part in parts if part.is_file()] or [path]


def first_part(path: Path) -> Path:
    """The part of a split file by which llama.cpp opens the whole; `path` itself of any other file. Raises
    ModelNotFoundError where it is missing.
    """
    first = path.with_name(all_parts(path.name)[0])
    if first != path and not first.is_file():
        raise ModelNotFoundError(
            f"{path}: a part of a split file, of which the first one, {first.name}, is not there"
        )
    return first


_HUB_SCHEME = "hf://"
_HUB_STARTS = (_HUB_SCHEME, *(f"{host}/" for host in HUB_HOSTS))
_PATH_STARTS = ("./", "../", "/", "~", ".\\", "file:")
_WEIGHT_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")


@dataclass(frozen=True)
class Reference:
    """One model that a text names.

    kind:     "path" (GGUF files, or a folder, that exist), "checkpoint" (a drafter checkpoint to convert,
              exists), "hub", "name" (of a stored model)
    text:     as written
    paths:    for "path" the files, first shard first; for "checkpoint" the directory or file
    name:     for "hub" and "name"; a hub name's tag is the quantisation or file asked for
    """

    kind: Literal["path", "checkpoint", "hub", "name"]
    text: str
    paths: tuple[Path, ...] = ()
    name: ModelName | None = None

    @property
    def path(self) -> Path:
        """The first path. Raises ValueError for a reference that is not on disk yet."""
        if not self.paths:
            raise ValueError(f"{self.text}: a {self.kind} reference has no path before it is looked up")
        return self.paths[0]

    @property
    def repository(self) -> str:
        """OWNER/NAME of a repository of the Hub."""
        assert self.name is not None, self.text
        return f"{self.name.namespace}/{self.name.model}"


def read_reference(text: str, directory: Path | None = None) -> Reference:
    """Reads one reference; relative paths are below `directory`, the current one unless given.

    Raises InvalidValueError or FileNotFoundError for a path that is not there, NotAFileError for a pipe or
    device, ModelNameError for an impossible name.
    """
    if is_hub_text(text):
        return read_named(text)
    path = expand_path(text, directory or Path.cwd())
    if text and exists(path):
        check_regular(path)
        return Reference("checkpoint" if _is_checkpoint(path) else "path", text, paths=(path,))
    if is_path_text(text):
        raise FileNotFoundError(f"no such file: {path}")
    return read_named(text)


def read_name(text: str) -> ModelName:
    """The name that a text is, `hf://` and both hosts of the Hub understood; no path is looked for.

    Raises ModelNameError.
    """
    if text.lower().startswith(_HUB_SCHEME):
        text = f"{HUB_HOSTS[0]}/{text[len(_HUB_SCHEME) :]}"
    if is_hub_text(text) and text.count("/") != 2:
        raise ModelNameError(f"{text!r} names no repository: expected {HUB_HOSTS[0]}/USER/REPO[:QUANT]")
    return canonical(ModelName.parse(text))


def read_named(text: str) -> Reference:
    """Reads a reference that names a model and never a file, as in a request. Raises ModelNameError."""
    return Reference("hub" if is_hub_text(text) else "name", text, name=read_name(text))


def model_name(text: str) -> ModelName:
    """The name that a reference is, when it is not a path.

    Raises ModelNotFoundError, saying so, for a text that can only be meant as a path.
    """
    if is_path_text(text):
        raise ModelNotFoundError(f"model {text!r}: no such file")
    try:
        return read_name(text)
    except ModelNameError as error:
        raise ModelNotFoundError(f"model {text!r}: no such file, and not a model name: {error}") from None


def hub_text(text: str) -> str:
    """What `-hf` makes of a reference: `owner/name` with the Hub before it."""
    return text if is_hub_text(text) else f"{HUB_HOSTS[0]}/{text}"


def is_path_text(text: str) -> bool:
    """Whether a text can only be meant as a path, by how it begins or ends."""
    if is_hub_text(text):
        return False
    return not text or text.startswith(_PATH_STARTS) or text.lower().endswith(_WEIGHT_SUFFIXES)


def is_hub_text(text: str) -> bool:
    """Whether a text says that it is on the Hub."""
    return text.lower().startswith(_HUB_STARTS)


def _is_checkpoint(path: Path) -> bool:
    if path.is_dir():
        return (path / "config.json").is_file() and not any(path.glob("*.gguf"))
    with open_regular(path) as stream:
        return path.suffix in (".safetensors", ".bin", ".pt", ".pth") and stream.read(4) != b"GGUF"
