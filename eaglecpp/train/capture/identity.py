# SPDX-License-Identifier: MIT
"""`TargetIdentity`: which target file something was made from, recorded with it to be compared later."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from eaglecpp.opening.context import head_keys
from eaglecpp.references.reference import all_parts
from eaglecpp.store.content import file_digest
from eaglecpp.train.data.chats import open_tokenizer


@dataclass(frozen=True)
class TargetIdentity:
    """sha256: of the file, hex (of the digests of its parts for a split file); n_bytes: of all parts;
    quantisation: see below; template_sha256: of its chat template, "" without one.
    """

    target_sha256: str
    target_bytes: int
    quantisation: str
    template_sha256: str


def identify(target: str | os.PathLike[str]) -> TargetIdentity:
    """Reads the whole file, the first time a process asks. Raises OSError, and GgufError for what is no
    model.
    """
    path = Path(target)
    parts = [path.with_name(name) for name in all_parts(path.name)]
    digests = [_sha256(part, part.stat().st_mtime_ns) for part in parts]
    digest = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    with open_tokenizer(path) as engine:
        template = engine.native.chat_template()
    return TargetIdentity(
        digest,
        sum(part.stat().st_size for part in parts),
        quantisation(path),
        hashlib.sha256(template.encode()).hexdigest() if template else "",
    )


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The expected values that a header has otherwise, for a message; "" when it has them all."""
    return "; ".join(
        f"{key}: expected {value}, found {found.get(key)}"
        for key, value in expected.items()
        if found.get(key) != value
    )


@lru_cache
def _sha256(path: Path, changed_ns: int) -> str:
    """Of a file's content; changed_ns makes a changed file another one."""
    return file_digest(path).removeprefix("sha256:")


def quantisation(path: Path) -> str:
    """llama.cpp's name of a file's type, as "Q8_0"; "unknown" where the file does not say."""
    from eaglecpp.store.facts import FILE_TYPES

    number = head_keys(path).get("general.file_type")
    return next((name for name, one in FILE_TYPES.items() if one == number), "unknown")
