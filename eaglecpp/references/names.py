# SPDX-License-Identifier: MIT
"""Model names as Ollama writes them: `[scheme://][host/][namespace/]model[:tag]`.

Text in, a `ModelName` with every default filled in out, and back. Whether a model of that name exists is the
store's business. Source of the rules: ollama/ollama: types/model/name.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from eaglecpp.errors import EagleError

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
    """A text that cannot be a model name; the message says which part is wrong."""


@dataclass(frozen=True)
class ModelName:
    """One model by name. Case is kept; names that differ only in case are the same model (`same_as`)."""

    model: str
    tag: str = "latest"
    namespace: str = _DEFAULT_NAMESPACE
    host: str = REGISTRY_HOST
    scheme: str = "https"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Reads a name; a trailing `:local` is cut. Raises ModelNameError for a cloud model or a bad name."""
        scheme, separator, rest = text.partition("://")
        if not separator:
            scheme, rest = cls.scheme, text
        rest = rest.removesuffix(":local")
        path, colon, tag = rest.rpartition(":")
        if not colon or "/" in tag:  # a colon before the last slash belongs to the host's port
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
                expected = "at most 80 letters, digits, '_' and '-', the first no '-'"
                raise ModelNameError(f"{_quoted(text)} is not a model name: its {wrong}: expected {expected}")
        return name

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """(host, namespace, model, tag): the path of its manifest below `manifests/`."""
        return (self.host, self.namespace, self.model, self.tag)

    @property
    def key(self) -> tuple[str, ...]:
        """What is the same for all names of one model."""
        return tuple(part.lower() for part in self.parts)

    @property
    def is_hub(self) -> bool:
        """Whether the host is the Hugging Face Hub."""
        return self.host.lower() in HUB_HOSTS

    def with_tag(self, tag: str) -> ModelName:
        """The same with another tag."""
        return replace(self, tag=tag)

    def same_as(self, other: ModelName) -> bool:
        """Whether both name one model; case and scheme do not matter."""
        return self.key == other.key

    def __str__(self) -> str:
        """The shortest text that reads back as this name; the tag is always there."""
        head = ""
        if self.host != REGISTRY_HOST:
            head = f"{self.host}/{self.namespace}/"
        elif self.namespace != _DEFAULT_NAMESPACE:
            head = f"{self.namespace}/"
        scheme = "" if self.scheme == "https" else f"{self.scheme}://"
        return f"{scheme}{head}{self.model}:{self.tag}"


def _quoted(text: str) -> str:
    """A text in quotes, of a long one the beginning."""
    return f"'{text}'" if len(text) <= _MAX_QUOTED else f"'{text[:_MAX_QUOTED]}...'"


def canonical(name: ModelName) -> ModelName:
    """The name under which a model is kept: hosts that are two names of one server become one."""
    host = name.host.lower()
    return replace(name, host=_ALIASES.get(host, name.host))
