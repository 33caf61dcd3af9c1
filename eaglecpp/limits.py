# SPDX-License-Identifier: MIT
"""Limits on what one request, or one model's settings, can ask for. Each protects time or memory that is
spent before generation starts, or at every token. They apply to requests and Modelfiles alike. SECURITY.md
lists them. The server's own limits are in its configuration, the limits of templates in
`eaglecpp.chat.bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglecpp.errors import InvalidValueError

STOP_STRINGS = 256
STOP_CHARS = 16_384
"""Characters in all stop strings together."""
DRY_BREAKERS = 16
"""Texts that DRY does not match across. llama.cpp searches the whole vocabulary for each."""
DRY_CHARS = 512
"""Characters in all of these together. llama.cpp uses the first 40 bytes of each."""
LOGIT_BIASES = 16_384
"""Entries of a request's `logit_bias`."""
JSON_VALUES = 1_000_000
"""Values in the body of a request, counted by its brackets and commas."""
EMBEDDING_VALUES = 8 << 20
"""Values in all vectors of one request: 2048 vectors of 4096 values, which is OpenAI's limit, or 21,845 of
384.
"""
PATTERN_CHARS = 1 << 16
"""Characters in all regular expressions of a JSON schema."""
SCHEMA_BYTES = 1 << 20
SCHEMA_DEPTH = 64
"""Nesting of schemas."""
SCHEMA_NODES = 3000
"""Subschemas of a schema; values of an enum are not counted. Compiling takes up to 3 s of processor time."""
SCHEMA_PATTERN_KEYS = 80
"""Keys of `patternProperties` in a schema. llguidance compares each key with all others."""
SCHEMA_MULTIPLE = 1 << 16
"""Common multiple of the `multipleOf` in a schema. llguidance creates a state for each remainder."""
SCHEMA_WAYS = 10_000
"""Combinations of alternatives (`anyOf`) that `allOf` joins. Each combination is written out."""
GBNF_BYTES = 1 << 17
GBNF_RULES = 1000
"""Rules of a GBNF grammar. llguidance's converter takes quadratic time, and 10,000 rules crash the process.
"""
GBNF_DEPTH = 64
"""Nesting of groups."""
GRAMMAR_REPETITIONS = 1_000_000_000
"""Maximum of the numbers in {m,n}, and of lengths and item counts in a schema. They are counted, never
written out.
"""

_TEXTS = {"stop": (STOP_STRINGS, STOP_CHARS), "dry_sequence_breakers": (DRY_BREAKERS, DRY_CHARS)}


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Raises InvalidValueError for an option whose list of texts exceeds the limits."""
    n_max, n_chars_max = _TEXTS[name]
    n_chars = sum(map(len, texts))
    if len(texts) > n_max:
        raise InvalidValueError(f"{name}: {len(texts)} texts, at most {n_max} are allowed")
    if n_chars > n_chars_max:
        raise InvalidValueError(f"{name}: {n_chars} characters in all, at most {n_chars_max} are allowed")
