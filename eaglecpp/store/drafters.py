# SPDX-License-Identifier: MIT
"""The table of known target -> drafter pairs (`eaglecpp/drafters.toml`) and how a target is found in it.

A target goes by many names (its Hub id, a GGUF repository, Ollama's tag, what its metadata says), so names
are compared after taking off what does not name the model: owner, quantisation, file format. Only whole names
match, never parts. Whether the drafter really fits is checked later, from the files.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from eaglecpp.store.errors import StoreError

__all__ = ["KnownDrafter", "find_drafter", "known_drafters"]

LayerIds = Literal["boundary", "post", "default"]
_TABLE = Path(__file__).parents[1] / "drafters.toml"
_QUANT = r"(?:u?d-)?(?:i?q[1-8](?:[_-][a-z0-9]+)*|bf16|fp16|f16|f32|fp8|mxfp4(?:_moe)?|nvfp4|tq[12]_0)"
_TAIL = re.compile(
    rf"(?:[-._](?:gguf|hf|{_QUANT}|i1|[0-9]{{5}}-of-[0-9]{{5}}|imatrix|unsloth|bnb-4bit))+$", re.IGNORECASE
)
_OLLAMA_REST = re.compile(rf"(?:-(?:instruct|it|chat|thinking))?(?:-{_QUANT})?", re.IGNORECASE)


@dataclass(frozen=True)
class KnownDrafter:
    """One row of the table.

    repo:      Hub id of the drafter
    targets:   Hub ids and Ollama names ("model:tag") of what it was trained for
    family:    who wrote the checkpoint, in the converter's words
    layer_ids: how explicit layer ids in it count: "boundary", "post", or "default" when it has none
    feed:      state fed to the next step, "pre" or "post", where the config alone does not tell; else ""
    folder:    where in the repository the checkpoint is, "" for its top
    source:    where this row is from
    """

    repo: str
    targets: tuple[str, ...]
    family: str
    layer_ids: LayerIds
    source: str
    feed: str = ""
    folder: str = ""

    @classmethod
    def unlisted(cls, repo: str, source: str = "") -> KnownDrafter:
        """A repository of which only the name is known."""
        return cls(repo, (), "", "default", source)


@cache
def known_drafters(path: Path = _TABLE) -> tuple[KnownDrafter, ...]:
    """Every row, best drafter of a target first. Raises StoreError for a table that is not well-formed."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: {error}") from error
    return tuple(_row(row, f"{path}: drafter {i + 1}") for i, row in enumerate(table.get("drafter", [])))


def find_drafter(
    target_names: Iterable[str],
    gguf_metadata: Mapping[str, Any],
    table: Iterable[KnownDrafter] | None = None,
) -> KnownDrafter | None:
    """The first drafter known for a target.

    target_names:  what the target is called: Hub id, stored name, file name
    gguf_metadata: keys of its GGUF (`general.*` is looked at)
    """
    names = [*target_names, *_metadata_names(gguf_metadata)]
    keys = {_key(name) for name in names} - {""}
    tags = {name.lower().removeprefix("registry.ollama.ai/").removeprefix("library/") for name in names}
    for entry in known_drafters() if table is None else table:
        for target in entry.targets:
            if ":" in target and any(_is_ollama_name(tag, target) for tag in tags):
                return entry
            if ":" not in target and _key(target) in keys:
                return entry
    return None


def _row(row: Mapping[str, Any], where: str) -> KnownDrafter:
    known = {field.name for field in fields(KnownDrafter)}
    unknown = sorted(row.keys() - known)
    if unknown:
        raise StoreError(f"{where}: unknown key {unknown[0]!r}; expected some of {', '.join(sorted(known))}")
    try:
        entry = KnownDrafter(**{**row, "targets": tuple(row.get("targets", ()))})
    except TypeError as error:
        raise StoreError(f"{where}: {str(error).partition('() ')[2]}") from None
    if not entry.targets or entry.layer_ids not in ("boundary", "post", "default"):
        raise StoreError(f"{where}: expected targets, and layer_ids boundary, post or default")
    if entry.feed not in ("", "pre", "post"):
        raise StoreError(f"{where}: feed: expected pre or post, found {entry.feed!r}")
    return entry


def _metadata_names(metadata: Mapping[str, Any]) -> list[str]:
    """What the metadata calls the model, from its own name to the models it was made from."""

    def text(key: str) -> str:
        value = metadata.get(key)
        return value if isinstance(value, str) else ""

    parts = [text(f"general.{key}") for key in ("basename", "finetune", "size_label")]
    names = [text("general.name"), "-".join(part for part in (parts[0], parts[2], parts[1]) if part)]
    names.append("-".join(part for part in parts if part))
    for i in range(4):
        base = f"general.base_model.{i}"
        names += [text(f"{base}.repo_url"), text(f"{base}.name")]
    return [name for name in names if name]


def _key(name: str) -> str:
    """What names of one model have in common: `bartowski/Qwen_Qwen3-8B-GGUF` and `Qwen3 8B` are qwen38b."""
    base = name.rstrip("/").rpartition("/")[2].partition(":")[0].lower().removesuffix(".gguf")
    base = _TAIL.sub("", base)
    words = re.split(r"[^a-z0-9.]+", base)
    if len(words) > 1 and words[1].startswith(words[0]) and words[0] in ("qwen", "llama", "gemma"):
        words = words[1:]  # some repositories repeat the owner: Qwen_Qwen3-8B
    if words[0] in ("meta", "openai", "google") and len(words) > 1:
        words = words[1:]
    return "".join(words)


def _is_ollama_name(name: str, target: str) -> bool:
    """Whether a stored name is Ollama's `target` in any quantisation: qwen3:8b-q8_0 is qwen3:8b."""
    model, _, tag = target.lower().partition(":")
    their_model, _, their_tag = name.partition(":")
    if their_model != model or not their_tag.startswith(tag):
        return False
    return _OLLAMA_REST.fullmatch(their_tag[len(tag) :]) is not None
