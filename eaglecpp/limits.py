# SPDX-License-Identifier: MIT
"""Limits on requests and on the settings of a model. Each limit protects time or memory that is spent before
generation starts, or at every token. The same limits apply to requests and Modelfiles. SECURITY.md lists the
limits. `eaglecpp.server.config` has the limits of the server, and `eaglecpp.chat.bounds` has the limits of
templates.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglecpp.errors import InvalidValueError

STOP_STRINGS = 256
STOP_CHARS = 16_384
"""Maximum characters in all stop strings together."""
DRY_BREAKERS = 16
"""Maximum number of DRY breakers, which are texts that the sampler DRY does not match across. llama.cpp
searches the whole vocabulary for each breaker.
"""
DRY_CHARS = 512
"""Maximum characters in all DRY breakers together. llama.cpp uses the first 40 bytes of each breaker."""
LOGIT_BIASES = 16_384
"""Maximum entries of a request's `logit_bias`."""
JSON_VALUES = 1_000_000
"""Maximum values in the JSON body of a request, counted by brackets and commas."""
EMBEDDING_VALUES = 8 << 20
"""Maximum values in all vectors of one embeddings request. This is enough for 2048 vectors (OpenAI's limit)
of 4096 values, or for 21,845 vectors of 384 values.
"""
PATTERN_CHARS = 1 << 16
"""Maximum characters in all regular expressions of a JSON schema."""
SCHEMA_BYTES = 1 << 20
SCHEMA_DEPTH = 64
"""Maximum nesting of schemas in a JSON schema."""
SCHEMA_NODES = 3000
"""Maximum subschemas of a JSON schema, without the values of enums. Compiling this number of subschemas takes
up to 3 s of processor time.
"""
SCHEMA_PATTERN_KEYS = 80
"""Maximum keys of `patternProperties` in a JSON schema. llguidance compares each key with all others."""
SCHEMA_MULTIPLE = 1 << 16
"""Maximum value of the least common multiple of all `multipleOf` in a JSON schema. llguidance creates a state
for each remainder.
"""
SCHEMA_WAYS = 10_000
"""Maximum number of combinations of alternatives (`anyOf`) that an `allOf` joins. llguidance writes out each
combination.
"""
GBNF_BYTES = 1 << 17
GBNF_RULES = 1000
"""Maximum rules of a GBNF grammar. llguidance's converter takes quadratic time, and 10,000 rules crash the
process.
"""
GBNF_DEPTH = 64
"""Maximum nesting of groups in a GBNF grammar."""
GRAMMAR_REPETITIONS = 1_000_000_000
"""Maximum of m and n in a repetition {m,n}, and of lengths and item counts in a schema. This maximum is high,
because llguidance counts repetitions instead of writing them out.
"""

_TEXTS = {"stop": (STOP_STRINGS, STOP_CHARS), "dry_sequence_breakers": (DRY_BREAKERS, DRY_CHARS)}


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Raises InvalidValueError for an option whose list of texts exceeds the limits."""
    n_max, n_chars_max = _TEXTS[name]
    n_chars = sum(map(len, texts))
    if len(texts) > n_max:
        raise InvalidValueError(f"{name}: expected at most {n_max} texts, found {len(texts)}")
    if n_chars > n_chars_max:
        raise InvalidValueError(f"{name}: expected at most {n_chars_max} characters in all, found {n_chars}")
