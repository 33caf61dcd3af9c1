# SPDX-License-Identifier: MIT
"""`TargetIdentity`: which target file something was made from, recorded with it to be compared later."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglecpp.references import all_parts
from eaglecpp.store.content import known_digest
from eaglecpp.store.facts import read_facts


@dataclass(frozen=True)
class TargetIdentity:
    """sha256: of the file, hex (of the digests of its parts for a split file); n_bytes: of all parts;
    quantisation: llama.cpp's name of its type, as "Q8_0"; template_sha256: of its chat template, "" without
    one.
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
    digests = [known_digest(part).removeprefix("sha256:") for part in parts]
    digest = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    facts = read_facts([path])
    template = facts.file.text("tokenizer.chat_template", "")
    return TargetIdentity(
        digest,
        sum(part.stat().st_size for part in parts),
        facts.file_type,
        hashlib.sha256(template.encode()).hexdigest() if template else "",
    )


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The expected values that a header has otherwise, for a message; "" when it has them all."""
    return "; ".join(
        f"{key}: expected {value}, found {found.get(key)}"
        for key, value in expected.items()
        if found.get(key) != value
    )
