# SPDX-License-Identifier: MIT
"""The table of known target-drafter pairs (`eaglecpp/drafters.toml`) and the search in it.

A target has many names (Hub id, GGUF repository, Ollama tag, metadata), so names are compared without owner,
quantisation and file format. Only whole names match, never parts of a name. If no name of a model matches,
the drafters of its base model are offered. Whether a drafter really fits is checked later, from the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from eaglecpp.store.errors import StoreError

if TYPE_CHECKING:
    from eaglecpp.store.facts import Facts

_TABLE = Path(__file__).parents[1] / "drafters.toml"
QUANT = r"(?:i?q[1-8](?:[_-][a-z0-9]+)*|bf16|fp16|f16|f32|fp8|mxfp4(?:_moe)?|nvfp4|tq[12]_0)"
"""Regular expression for the type in a file name, in lower case."""
_TAIL = re.compile(
    rf"(?:[-._](?:gguf|hf|(?:u?d-)?{QUANT}|i1|[0-9]{{5}}-of-[0-9]{{5}}|imatrix|unsloth|bnb-4bit))+$",
    re.IGNORECASE,
)
_OLLAMA_REST = re.compile(rf"(?:-(?:instruct|it|chat|thinking))?(?:-(?:u?d-)?{QUANT})?", re.IGNORECASE)


class KnownDrafter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table of known drafters.

    repo:      Hub id of the drafter
    targets:   Hub ids and Ollama names ("model:tag") of the models for which the drafter was trained
    family:    trainer of the checkpoint, in the converter's terms, "" if unknown
    layer_ids: convention for explicit layer ids: "boundary", "post", or "default" if the checkpoint has no
               such ids
    feed:      state fed to the next draft step, "pre" or "post", if the config alone does not decide this;
               otherwise ""
    folder:    folder of the checkpoint in the repository, "" for its top
    file:      GGUF of the drafter, if it comes with eaglecpp; `repo` is only a name then
    source:    source of this row
    licence:   licence of the drafter, "" if unknown
    refused:   reason why the drafter cannot run here, or why its target cannot use drafts. Such a row is
               listed but never offered
    matched:   the name in `targets` that matched the model
    """

    repo: str
    targets: tuple[str, ...] = ()
    family: str = ""
    layer_ids: Literal["boundary", "post", "default"] = "default"
    source: str = ""
    feed: Literal["", "pre", "post"] = ""
    folder: str = ""
    file: str = ""
    licence: str = ""
    refused: str = ""
    matched: str = ""

    @property
    def why(self) -> str:
        """A description of the drafter, and of the model for which it was trained."""
        return f"{self.repo}, made for {self.matched}"


@cache
def known_drafters() -> tuple[KnownDrafter, ...]:
    """Returns all rows of the table. For each target, the best drafter comes first. Raises StoreError for a
    malformed table.
    """
    try:
        return msgspec.toml.decode(_TABLE.read_bytes(), type=dict[str, tuple[KnownDrafter, ...]])["drafter"]
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise StoreError(f"{_TABLE}: {error}") from error


def first_runnable(matches: Iterable[KnownDrafter]) -> KnownDrafter | None:
    """Returns the first of the given drafters that can run here, or None."""
    return next((match for match in matches if not match.refused), None)


def find_drafters(names: Iterable[str], metadata: Mapping[str, Any] | None = None) -> list[KnownDrafter]:
    """Returns all known drafters for a target: the drafters trained for the target itself or, if no such
    drafter is known, for the target's base model.

    names:    names of the target: Hub id, stored name, file name
    metadata: keys of its GGUF (`general.*` is used)
    """
    return _matches([*names, *_own_names(metadata or {})]) or _matches(_base_names(metadata or {}))


def known_for(name: str, file: str, facts: Facts) -> tuple[list[KnownDrafter], str]:
    """Returns the drafters for a model that can run here, best first. If there are none, also returns the
    reason.

    name: name of the model; file: name of its file
    """
    from eaglecpp.store.facts import metadata

    matches = find_drafters([name, file], metadata(facts.file))
    runnable = [match for match in matches if not match.refused]
    return runnable, "" if runnable else no_drafter_reason(name or file, matches)


def no_drafter_reason(name: str, matches: Iterable[KnownDrafter]) -> str:
    """Returns the reason why a model has no drafter: no drafter is known, or the known drafters cannot
    run.
    """
    reasons = [f"{match.repo}: {match.refused}" for match in matches]
    if not reasons:
        return f"no drafter is known for {name}"
    return f"the drafters known for {name} cannot run here ({'; '.join(reasons)})"


def search_drafters(text: str) -> list[KnownDrafter]:
    """Returns rows whose target or drafter contains the text, ignoring case."""
    wanted = text.lower()
    rows = known_drafters()
    return [row for row in rows if any(wanted in name.lower() for name in (row.repo, *row.targets))]


def _matches(names: Sequence[str]) -> list[KnownDrafter]:
    """Returns the rows that contain one of the names, or another name of the same model. All names in a row
    mean the same model.
    """
    named = dict(_named(names))
    others = [name for row in named for name in row.targets]
    return [replace(row, matched=named.get(row, target)) for row, target in _named([*names, *others])]


def _named(names: Sequence[str]) -> Iterator[tuple[KnownDrafter, str]]:
    """Yields the rows that contain one of the names, each with the name that it contains."""
    keys = {_key(name) for name in names} - {""}
    tags = {name.lower().rpartition("/")[2] for name in names}
    for row in known_drafters():
        for target in row.targets:
            if any(_is_ollama_name(tag, target) for tag in tags) if ":" in target else _key(target) in keys:
                yield row, target
                break


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(f"general.{key}")
    return value if isinstance(value, str) else ""


def _own_names(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the model's own names, from the metadata."""
    base, tune, size = (_text(metadata, key) for key in ("basename", "finetune", "size_label"))
    joined = ["-".join(filter(None, parts)) for parts in ((base, size, tune), (base, tune, size))]
    return [name for name in (_text(metadata, "name"), *joined) if name]


def _base_names(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the names of the model's base models, from the metadata. In a quantised file the base model is
    often the model itself.
    """
    keys = [f"base_model.{i}.{part}" for i in range(4) for part in ("repo_url", "name")]
    return [name for key in keys if (name := _text(metadata, key))]


def _key(name: str) -> str:
    """Reduces a name to its common form: `bartowski/Qwen_Qwen3-8B-GGUF` and `Qwen3 8B` become qwen38b."""
    base = name.rstrip("/").rpartition("/")[2].partition(":")[0].lower().removesuffix(".gguf")
    base = _TAIL.sub("", base)
    words = re.split(r"[^a-z0-9.]+", base)
    if len(words) > 1 and words[1].startswith(words[0]) and words[0] in ("qwen", "llama", "gemma"):
        words = words[1:]  # some repositories repeat the owner in their name, such as Qwen_Qwen3-8B
    if words[0] in ("meta", "openai", "google") and len(words) > 1:
        words = words[1:]
    return "".join(words)


def _is_ollama_name(name: str, target: str) -> bool:
    """Returns whether a stored name is Ollama's `target` in any quantisation: qwen3:8b-q8_0 is qwen3:8b."""
    model, _, tag = target.lower().partition(":")
    their_model, _, their_tag = name.partition(":")
    if their_model != model or not their_tag.startswith(tag):
        return False
    return _OLLAMA_REST.fullmatch(their_tag[len(tag) :]) is not None
