# SPDX-License-Identifier: MIT
"""Grammar, JSON schema or OpenAI `response_format` to one GBNF text.

The translation of JSON schemas (`schema`) needs the extension and is imported only when one is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from eaglecpp.errors import GrammarError, InvalidTypeError, InvalidValueError

_UNICODE = re.compile("[^\ud800-\udfff]*")


def resolve_grammar(
    grammar: Any = None,
    json_schema: str | Mapping[str, Any] | None = None,
    response_format: Mapping[str, Any] | None = None,
) -> str | None:
    """The GBNF text asked for, or None when nothing constrains the text.

    `grammar`: GBNF text or a `llama_cpp.LlamaGrammar`; `json_schema`: a schema as dict or JSON text;
    `response_format`: {"type": "text" | "json_object" | "json_schema", ...} as in the OpenAI API (and with
    llama_cpp's "schema" key). Raises `ValueError` when more than one is given, `GrammarError` for a schema
    that cannot be translated. The grammar itself is parsed when the generation starts.
    """
    given = {"grammar": grammar, "json_schema": json_schema, "response_format": response_format}
    names = [name for name, value in given.items() if value]
    if len(names) > 1:
        raise InvalidValueError(
            f"give one of grammar, json_schema and response_format, not {' and '.join(names)}"
        )
    if grammar:
        return _text(grammar)
    kind, schema = ("json_schema", json_schema) if not response_format else _format(response_format)
    if schema:
        from .schema import schema_to_gbnf

        try:
            return schema_to_gbnf(schema if isinstance(schema, str) else json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"the schema is not JSON: {error}") from None
    if kind != "json_object":
        return None
    from llama_cpp.llama_grammar import JSON_GBNF

    return str(JSON_GBNF)


def _text(grammar: Any) -> str:
    text = grammar if isinstance(grammar, str) else getattr(grammar, "_grammar", None)
    if not isinstance(text, str):
        raise InvalidTypeError(f"grammar must be GBNF text or a LlamaGrammar, got {type(grammar).__name__}")
    if not _UNICODE.fullmatch(text):
        raise GrammarError("the grammar holds half a surrogate pair, which is not a character")
    return text


def _format(response_format: Any) -> tuple[Any, Any]:
    """The type, and the schema if it has one."""
    if not isinstance(response_format, Mapping):
        raise InvalidTypeError(
            f'response_format must be a dict like {{"type": "json_object"}}, got {response_format!r}'
        )
    kind, nested = response_format.get("type"), response_format.get("json_schema")
    schema = nested.get("schema", nested) if isinstance(nested, Mapping) else response_format.get("schema")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidValueError(
            f"response_format type must be text, json_object or json_schema; got {kind!r}"
        )
    if kind == "json_schema" and not schema:
        raise InvalidValueError(
            'response_format of type "json_schema" has no schema in ["json_schema"]["schema"]'
        )
    return kind, schema if kind != "text" else None
