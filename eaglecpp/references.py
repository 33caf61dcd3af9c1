# SPDX-License-Identifier: MIT
"""References to models, drafters, checkpoints and data sets: one grammar for the command line, the Modelfile
and Python. docs/models.md describes it for users.

    hf.co/OWNER/NAME[:QUANT]              the Hugging Face Hub; also huggingface.co/ and hf://, or with -hf
    PATH                                  exists, begins with ./ ../ / or ~, or has the suffix of a weight
file
    [HOST/][NAMESPACE/]MODEL[:TAG]        a stored model, ours or Ollama's; else in Ollama's registry

These forms are tried in this order, so a file or folder takes precedence over a name. `owner/name` alone is
the name of a stored model; a reference to the Hub needs a prefix. Names follow Ollama (ollama/ollama:
types/model/name.go). In a drafter's reference, the words `text` (drafts from the text itself) and `auto`
(finds a fitting drafter) take precedence over all forms.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from eaglecpp.data_dir import expanded
from eaglecpp.errors import EagleError, ModelNotFoundError
from eaglecpp.files import check_regular, exists, open_regular

HUB_HOSTS = ("hf.co", "huggingface.co")
REGISTRY_HOST = "registry.ollama.ai"
_ALIASES = {"huggingface.co": "hf.co", "ollama.com": REGISTRY_HOST}
_DEFAULT_NAMESPACE = "library"
_MAX_QUOTED = 100
_PARTS = {
    "host": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}"),
    "namespace": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}"),
    "model": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
    "tag": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
}


class ModelNameError(EagleError, ValueError):
    """A text is not a valid model name; the message says which part is wrong."""


@dataclass(frozen=True)
class ModelName:
    """The name of a model. The case of letters is kept, but names that differ only in case are the same model
    (`same_as`).
    """

    model: str
    tag: str = "latest"
    namespace: str = _DEFAULT_NAMESPACE
    host: str = REGISTRY_HOST
    scheme: str = "https"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Parses a name. A trailing `:local` is removed. Raises ModelNameError for a cloud model or an
        invalid name.
        """
        scheme, separator, rest = text.partition("://")
        if not separator:
            scheme, rest = cls.scheme, text
        rest = rest.removesuffix(":local")
        path, colon, tag = rest.rpartition(":")
        if not colon or "/" in tag:  # in a name without a tag, the last colon may come before the host's port
            path, tag = rest, cls.tag
        if tag.lower() == "cloud" or tag.lower().endswith("-cloud"):
            raise ModelNameError(f"'{text}' runs in Ollama's cloud; eaglecpp runs models on this machine")
        head, _, model = path.rpartition("/")
        host, _, namespace = head.rpartition("/")
        namespace = namespace if head else cls.namespace
        name = cls(model, tag, namespace, host if "/" in head else cls.host, scheme)
        for part, pattern in _PARTS.items():
            if pattern.fullmatch(getattr(name, part)) is None:
                wrong = f"{part} {_quoted(getattr(name, part))}"
                expected = "at most 80 letters, digits, '_' and '-', not beginning with '-'"
                raise ModelNameError(f"{_quoted(text)} is not a model name; {wrong}: expected {expected}")
        return name

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """(host, namespace, model, tag): the path of the manifest below `manifests/`."""
        return (self.host, self.namespace, self.model, self.tag)

    @property
    def key(self) -> tuple[str, ...]:
        """A key that is equal for all names of one model."""
        return tuple(part.lower() for part in self.parts)

    @property
    def is_hub(self) -> bool:
        """True if the host is the Hugging Face Hub."""
        return self.host.lower() in HUB_HOSTS

    @property
    def repository(self) -> str:
        """OWNER/NAME of a repository on the Hub."""
        return f"{self.namespace}/{self.model}"

    def with_tag(self, tag: str) -> ModelName:
        """Returns this name with another tag."""
        return replace(self, tag=tag)

    def same_as(self, other: ModelName) -> bool:
        """Returns whether both names refer to one model, ignoring case and scheme."""
        return self.key == other.key

    def __str__(self) -> str:
        """Returns the shortest text that parses to this name, always with the tag."""
        head = ""
        if self.host != REGISTRY_HOST:
            head = f"{self.host}/{self.namespace}/"
        elif self.namespace != _DEFAULT_NAMESPACE:
            head = f"{self.namespace}/"
        scheme = "" if self.scheme == "https" else f"{self.scheme}://"
        return f"{scheme}{head}{self.model}:{self.tag}"


def _quoted(text: str) -> str:
    """Returns a text in quotes, shortened if it is long."""
    return f"'{text}'" if len(text) <= _MAX_QUOTED else f"'{text[:_MAX_QUOTED]}...'"


def canonical(name: ModelName) -> ModelName:
    """Returns the name under which a model is stored. An alias of a host is replaced by the host."""
    host = name.host.lower()
    return replace(name, host=_ALIASES.get(host, name.host))


def expand_path(value: str, directory: Path) -> Path:
    """Returns the absolute path of a text. `~` and `~user` are expanded. Any other relative path is relative
    to `directory`.

    Raises InvalidValueError for an unknown user.
    """
    return Path(os.path.abspath(directory / expanded(value)))  # noqa: PTH100 - resolve() would follow symlinks


_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.IGNORECASE)


def in_order(names: Iterable[str]) -> list[str]:
    """Returns the file names of one split file in the order of its parts.

    Raises ValueError unless the names are exactly the parts of one file.
    """
    matches = [_PART.fullmatch(name) for name in names]
    parts = sorted((m for m in matches if m is not None), key=lambda m: int(m[2]))
    wholes = {(m[1].lower(), int(m[3])) for m in parts}
    if (
        None in matches
        or len(wholes) != 1
        or [int(m[2]) for m in parts] != [*range(1, next(iter(wholes))[1] + 1)]
    ):
        raise ValueError("expected all parts of one split file")
    return [m[0] for m in parts]


def all_parts(name: str) -> list[str]:
    """Returns the names of all parts of a split file. name: name of any part; for a file that is not split,
    the result is only this name.
    """
    match = _PART.fullmatch(name)
    if match is None or int(match[3]) == 0:
        return [name]
    return [f"{match[1]}-{part:05}-of-{match[3]}.gguf" for part in range(1, int(match[3]) + 1)]


def part_paths(path: Path) -> list[Path]:
    """Returns the paths of the existing parts of a split file. path: path of any part; for a file that is not
    split, the result is only this path.
    """
    parts = [path.with_name(name) for name in all_parts(path.name)]
    return [part for part in parts if part.is_file()] or [path]


def first_part(path: Path) -> Path:
    """Returns the path of the first part of a split file, with which llama.cpp opens the file. For a file
    that is not split, returns `path`. Raises ModelNotFoundError if the first part is missing.
    """
    first = path.with_name(all_parts(path.name)[0])
    if first != path and not first.is_file():
        raise ModelNotFoundError(
            f"{path} is part of a split file whose first part, {first.name}, is missing from this folder"
        )
    return first


_HUB_SCHEME = "hf://"
_HUB_STARTS = (_HUB_SCHEME, *(f"{host}/" for host in HUB_HOSTS))
_PATH_STARTS = ("./", "../", "/", "~", ".\\", "file:")
_WEIGHT_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")


def read_reference(text: str, directory: Path | None = None) -> ModelName | Path:
    """Resolves a reference. Returns an absolute path if the reference is an existing path, else a model name.
    A relative path is below `directory`, or below the current directory for None.

    Raises InvalidValueError or FileNotFoundError for a missing path, NotAFileError for a pipe or device,
    ModelNameError for an invalid name.
    """
    if not is_hub_text(text):
        path = expand_path(text, directory or Path.cwd())
        if text and exists(path):
            check_regular(path)
            return path
        if is_path_text(text):
            raise FileNotFoundError(f"no such file: {path}")
    return read_name(text)


def read_name(text: str) -> ModelName:
    """Parses a model name, also with `hf://` or one of the Hub's two hosts. Never looks for a file.

    Raises ModelNameError.
    """
    if text.lower().startswith(_HUB_SCHEME):
        text = f"{HUB_HOSTS[0]}/{text[len(_HUB_SCHEME) :]}"
    if is_hub_text(text) and text.count("/") != 2:
        raise ModelNameError(f"{text!r} is not a Hub repository: expected {HUB_HOSTS[0]}/USER/REPO[:QUANT]")
    return canonical(ModelName.parse(text))


def model_name(text: str) -> ModelName:
    """Returns the model name in a reference. The reference must not be an existing path.

    Raises ModelNotFoundError, with the message "no such file" if the text can only be a path.
    """
    if is_path_text(text):
        raise ModelNotFoundError(f"model {text!r}: no such file")
    try:
        return read_name(text)
    except ModelNameError as error:
        raise ModelNotFoundError(f"model {text!r}: no such file, and not a model name: {error}") from None


def hub_text(text: str) -> str:
    """Returns an argument of `-hf` as a reference: prepends the Hub's host to `owner/name`."""
    return text if is_hub_text(text) else f"{HUB_HOSTS[0]}/{text}"


def is_path_text(text: str) -> bool:
    """Returns whether a text can only be a path, judged by its beginning and its suffix."""
    if is_hub_text(text):
        return False
    return not text or text.startswith(_PATH_STARTS) or text.lower().endswith(_WEIGHT_SUFFIXES)


def is_hub_text(text: str) -> bool:
    """Returns whether a text begins with a host or scheme of the Hub."""
    return text.lower().startswith(_HUB_STARTS)


def is_checkpoint(path: Path) -> bool:
    """Returns whether a file or folder is a checkpoint to convert, not a GGUF."""
    if path.is_dir():
        return (path / "config.json").is_file() and not any(path.glob("*.gguf"))
    with open_regular(path) as stream:
        return path.suffix in _WEIGHT_SUFFIXES[1:] and stream.read(4) != b"GGUF"
