# SPDX-License-Identifier: MIT
"""The most that one request may ask for, and one model may set: what costs time or memory before anything is
generated, or with every token. Everyone is held to these, because a stop string in a stranger's Modelfile and
one in a stranger's request cost the same. SECURITY.md has the list; limits of the server's own are in its
configuration, those of templates in `eaglecpp.chat.bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglecpp.errors import InvalidValueError

STOP_STRINGS = 256
STOP_CHARS = 16_384
"""Of all stop strings together."""
DRY_BREAKERS = 16
"""Texts that DRY does not match across. llama.cpp looks through the whole vocabulary for each of them."""
DRY_CHARS = 512
"""Of all of these together. llama.cpp uses the first 40 bytes of each."""
LOGIT_BIASES = 16_384
"""Entries of a request's `logit_bias`."""
JSON_VALUES = 1_000_000
"""Values in the body of a request, as its brackets and commas count them."""
EMBEDDING_VALUES = 8 << 20
"""In all vectors that one request gets: 2048 of 4096 values, which is OpenAI's limit, 21,845 of 384."""
PATTERN_CHARS = 1 << 16
"""Of all regular expressions in a JSON schema."""
SCHEMA_BYTES = 1 << 20
SCHEMA_DEPTH = 64
"""Of schemas in schemas."""
SCHEMA_NODES = 3000
"""Schemas in a schema; the values of an enum are none. Compiling takes up to 3 s of processor time."""
SCHEMA_PATTERN_KEYS = 80
"""Keys of `patternProperties` in a schema. llguidance compares each with all others."""
SCHEMA_MULTIPLE = 1 << 16
"""Common multiple of the `multipleOf` in a schema: llguidance makes a state for each remainder."""
SCHEMA_WAYS = 10_000
"""Combinations of alternatives (`anyOf`) that `allOf` joins; they are written out."""
GBNF_BYTES = 1 << 17
GBNF_RULES = 1000
"""llguidance's converter takes time that grows with the square of them, and 10,000 end the process."""
GBNF_DEPTH = 64
"""Of groups in groups."""
GRAMMAR_REPETITIONS = 1_000_000_000
"""The numbers in {m,n}, and of lengths and items in a schema. They are counted, never written out."""

_TEXTS = {"stop": (STOP_STRINGS, STOP_CHARS), "dry_sequence_breakers": (DRY_BREAKERS, DRY_CHARS)}


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Raises InvalidValueError for an option that is a list of texts and has more than it may."""
    n_most, n_chars_most = _TEXTS[name]
    n_chars = sum(map(len, texts))
    if len(texts) > n_most:
        raise InvalidValueError(f"{name}: {len(texts)} texts, at most {n_most} are allowed")
    if n_chars > n_chars_most:
        raise InvalidValueError(f"{name}: {n_chars} characters in all, at most {n_chars_most} are allowed")
