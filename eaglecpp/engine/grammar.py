# SPDX-License-Identifier: MIT
"""Grammars of answers, from GBNF, a JSON schema or OpenAI's `response_format`, for llguidance.

`llguidance` is imported with the first grammar. Grammars come from clients, so their size, depth and number
of parts are checked here: llguidance's converters recurse and take quadratic time.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eaglecpp.chat.call_syntax import referred
from eaglecpp.errors import GrammarError, InvalidTypeError, InvalidValueError
from eaglecpp.limits import (
    GBNF_BYTES,
    GBNF_DEPTH,
    GBNF_RULES,
    GRAMMAR_REPETITIONS,
    PATTERN_CHARS,
    SCHEMA_BYTES,
    SCHEMA_DEPTH,
    SCHEMA_MULTIPLE,
    SCHEMA_NODES,
    SCHEMA_PATTERN_KEYS,
    SCHEMA_WAYS,
)


class Lark(str):
    """A grammar in llguidance's variant of Lark, the format that the engine accepts."""


def resolve_grammar(
    grammar: Any = None,
    json_schema: str | Mapping[str, Any] | None = None,
    response_format: Mapping[str, Any] | None = None,
) -> Lark | None:
    """Returns the grammar for these arguments, or None for unconstrained text.

    `grammar`: GBNF text or a `llama_cpp.LlamaGrammar`; `json_schema`: a schema as dict or JSON text;
    `response_format`: {"type": "text" | "json_object" | "json_schema", ...} as in the OpenAI API, or with
    llama_cpp's key "schema". If its `strict` is true, a schema with parts that cannot be enforced is refused.
    Raises `ValueError` for more than one argument, `GrammarError` for a grammar that does not parse. A schema
    is compiled when the generation starts.
    """
    sources = {"grammar": grammar, "json_schema": json_schema, "response_format": response_format}
    names = [name for name, value in sources.items() if value]
    if len(names) > 1:
        raise InvalidValueError(
            f"give one of grammar, json_schema and response_format, not {' and '.join(names)}"
        )
    if grammar:
        return grammar if isinstance(grammar, Lark) else _from_gbnf(grammar)
    schema, strict = read_format(response_format) if response_format else (json_schema, False)
    return _from_schema(schema, strict) if schema else None


@functools.cache
def _load() -> None:
    """Loads llguidance into the extension."""
    import llguidance

    from eaglecpp._extension import core

    (path,) = Path(llguidance.__file__).parent.glob("_lib*.*[do]")
    core.load_llguidance(str(path))


def _check(what: str, of: str, found: int, n_max: int) -> None:
    if found > n_max:
        raise GrammarError(f"the {of}: expected at most {n_max} {what}, found {found}")


# --- JSON schemas ---------------------------------------------------------------------------------------

_OF_TYPE = {  # As in llama.cpp, these keys imply the type of a schema without a type
    "object": {"properties", "additionalProperties", "required"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"pattern", "format", "minLength", "maxLength"},
}
_COMBINED = ("allOf", "anyOf", "oneOf")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NOT_SCHEMAS = {"enum", "const", "default", "examples", "required", "type"}
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_MAY_LOOK_AROUND = re.compile(r"\\[1-9bB]|\(\?<?[=!]|.[$^].", re.DOTALL)
_IS_BEYOND = re.compile("look-?around|backreferences|disjoint")
_PARTS = re.compile(r"\\[pPux]\{[^{}]*\}|\\.|\{[0-9]+(?:,[0-9]*)?\}|&&|~~|.", re.DOTALL)
_LOOKAROUND = re.compile(r"\(\?<?[=!][^()]*\)(?![*+?{])")
_INT64 = 9223372036854774784  # the largest number below 2^63 that a double represents
_BOUNDS = ((-1, "minimum", "exclusiveMinimum"), (1, "maximum", "exclusiveMaximum"))
_LONGEST = {"time": 24, "date-time": 35, "duration": 24, "hostname": 253, "email": 254}
_WHITESPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _from_schema(schema: str | Mapping[str, Any], strict: bool) -> Lark:
    """Builds a grammar for values of a schema. strict: raise GrammarError unless the whole schema can be
    enforced.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        _check("bytes", "JSON schema", len(text.encode("utf-8", "surrogatepass")), SCHEMA_BYTES)
        root = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema cannot be read: {error}") from None
    _load()
    root = {} if root is True else root
    if not isinstance(root, dict):
        raise GrammarError(f"the JSON schema: expected an object or true, found {text[:80]}")
    _Schema(root, strict).prepare()
    root["x-guidance"] = {"lenient": not strict, **_WHITESPACE}
    return Lark(f"%llguidance {{}}\nstart: %json {json.dumps(root)}\n")


class _Schema:
    """Checks the limits of a schema, and adds keys that llama.cpp implies: the type that follows from other
    keys, and `additionalProperties: false`. Parts of a joined schema (`allOf`, or keys next to `anyOf` or
    `$ref`) do not get `additionalProperties: false`, because each part would then forbid the properties of
    the other parts.
    """

    def __init__(self, root: dict[str, Any], strict: bool) -> None:
        self._root, self._strict = root, strict
        self._n_pattern_chars = self._n_pattern_keys = 0
        self._multiples: set[int] = set()
        self._joined: set[int] = set()
        self._n_ways: dict[int, int] = {}
        self._bases: dict[int, Any] = {}  # the schema in which the "$ref" of a schema is looked up

    def prepare(self) -> None:
        """Changes the schema in place. Raises GrammarError above a limit."""
        schemas = list(self._all())
        _check("characters in all patterns", "JSON schema", self._n_pattern_chars, PATTERN_CHARS)
        _check("patterns of properties", "JSON schema", self._n_pattern_keys, SCHEMA_PATTERN_KEYS)
        for schema in schemas:
            if "allOf" in schema or (schema.keys() & {"$ref", *_COMBINED} and "properties" in schema):
                self._join(schema)
        try:
            n_ways = max(self._ways(schema) for schema in schemas)
        except RecursionError:
            raise GrammarError("the JSON schema has too long a chain of references") from None
        _check("combinations of its alternatives", "JSON schema", n_ways, SCHEMA_WAYS)
        for schema in schemas:
            self._complete(schema)

    def _ways(self, schema: Any) -> int:
        """Returns the number of combinations of alternatives in a schema. llguidance writes out each
        combination when it joins the schema's parts.
        """
        if not isinstance(schema, dict):
            return 1
        if id(schema) not in self._n_ways:
            self._n_ways[id(schema)] = 1  # a schema that refers to itself ends the recursion here
            n = self._ways(self._referred(schema))
            for key in _COMBINED:
                parts = schema.get(key)
                each = [self._ways(part) for part in parts] if isinstance(parts, list) else []
                n *= max(1, sum(each)) if key != "allOf" else math.prod(each)
            self._n_ways[id(schema)] = n
        return self._n_ways[id(schema)]

    def _referred(self, schema: dict[str, Any]) -> Any:
        return referred(self._bases.get(id(schema), self._root), schema.get("$ref"))

    def _all(self) -> Iterator[dict[str, Any]]:
        waiting, n = [(self._root, 0, self._root)], 0
        while waiting:
            schema, depth, base = waiting.pop()
            n += 1
            base = schema if "$id" in schema else base
            self._bases[id(schema)] = base
            _check("schemas", "JSON schema", n, SCHEMA_NODES)
            _check("levels of nested schemas", "JSON schema", depth, SCHEMA_DEPTH)
            yield schema
            for key, value in schema.items():
                self._count(key, value)
                inner = value.values() if key in _MAPS and isinstance(value, dict) else [value]
                if key in _NOT_SCHEMAS:
                    continue
                for part in inner:
                    parts = part if isinstance(part, list) else [part]
                    waiting += [(item, depth + 1, base) for item in parts if isinstance(item, dict)]

    def _count(self, key: str, value: Any) -> None:
        if key == "pattern":
            self._n_pattern_chars += len(str(value))
        if key == "patternProperties" and isinstance(value, dict):
            self._n_pattern_keys += len(value)
            self._n_pattern_chars += sum(map(len, value))
        if key == "multipleOf" and isinstance(value, (int, float)):
            digits = "".join(re.findall("[0-9]", repr(value).partition("e")[0])).strip("0")
            self._multiples.add(int(digits[:20] or 1))
            n = max(sum(self._multiples), math.lcm(*self._multiples))
            _check("for the common multiple of all multipleOf", "JSON schema", n, SCHEMA_MULTIPLE)
        if key in _SIZES and isinstance(value, (int, float)):
            _check(f"for {key}", "JSON schema", int(value), GRAMMAR_REPETITIONS)

    def _join(self, schema: dict[str, Any]) -> None:
        """Marks all parts of a joined schema as open. `additionalProperties: false` is not added to open
        parts.
        """
        waiting = [schema]
        while waiting:
            node = waiting.pop()
            if id(node) in self._joined:
                continue
            self._joined.add(id(node))
            parts = [part for key in _COMBINED if isinstance(node.get(key), list) for part in node[key]]
            parts.append(self._referred(node))
            waiting += [part for part in parts if isinstance(part, dict)]

    def _complete(self, schema: dict[str, Any]) -> None:
        if isinstance(schema.get("pattern"), str):
            schema["pattern"] = _in_rust(schema["pattern"])
        if not self._strict:
            _loosen(schema)
        _bound(schema)
        if id(schema) in self._joined:
            return
        if not schema.keys() & {"type", "$ref", "enum", "const", "not", *_COMBINED}:
            kinds = [kind for kind, keys in _OF_TYPE.items() if schema.keys() & keys]
            if kinds:
                schema["type"] = kinds[0]
        known, required = schema.get("properties"), schema.get("required")
        if isinstance(known, dict) and "additionalProperties" not in schema:
            for name in required if isinstance(required, list) else ():
                known.setdefault(str(name), {})
            schema["additionalProperties"] = False


def _in_rust(pattern: str) -> str:
    """Converts a pattern from JavaScript, which has no special meaning for `[`, `&&` and `~~` in a class, for
    `{` without numbers, and for `\\<` and `\\>`.
    """
    parts, in_class = [], False
    for part in _PARTS.findall(pattern):
        is_literal = part in ("[", "&&", "~~") if in_class else part == "{"
        parts.append("\\" + part if is_literal else part[1:] if part in (r"\<", r"\>") else part)
        in_class = part == "[" or (in_class and part != "]")
    return "".join(parts)


def _bound(schema: dict[str, Any]) -> None:
    """Limits integers, and bounds of numbers, to 64 bits, and the length of times, names and addresses.
    llguidance refuses larger bounds, and small models may repeat a character until the context is full.
    """
    is_integer = schema.get("type") == "integer" and not schema.keys() & {"enum", "const"}
    for sign, *keys in _BOUNDS:
        for key in schema.keys() & {*keys} or (keys[:1] if is_integer else ()):
            value = schema.get(key, sign * math.inf)
            if isinstance(value, int | float) and sign * value > _INT64:
                schema[key] = sign * _INT64
    if longest := _LONGEST.get(str(schema.get("format"))):
        schema.setdefault("maxLength", longest)


def _loosen(schema: dict[str, Any]) -> None:
    """Removes what llguidance does not support: lookaround in a pattern, patterns with backreferences, and
    property patterns that may match the same name. Properties with a removed pattern are allowed under any
    name.
    """
    pattern, names = str(schema.get("pattern")), schema.get("patternProperties")
    if _MAY_LOOK_AROUND.search(pattern) and _IS_BEYOND.search(_problem(pattern=pattern)):
        schema["pattern"] = _LOOKAROUND.sub("", pattern)
        if _problem(pattern=schema["pattern"]):
            del schema["pattern"]
        schema.setdefault("type", "string")
    keys = dict.fromkeys(names, True) if isinstance(names, dict) else {}
    if keys and _IS_BEYOND.search(_problem(patternProperties=keys)):
        others = [schema.get("additionalProperties", False), *schema.pop("patternProperties").values()]
        schema["additionalProperties"] = {"anyOf": others}


def _problem(**schema: Any) -> str:
    """Returns the reason for which llguidance refuses a schema; "" for a valid schema."""
    from llguidance import LLMatcher

    return str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema)))


# --- GBNF -----------------------------------------------------------------------------------------------

_GBNF = re.compile(
    r"""(?P<space>[ \t]+|\r?\n|\r)|(?P<comment>\#[^\r\n]*)|(?P<text>"(?:\\.|[^"\\])*")|
    (?P<set>\[(?:\\.|[^\]\\])*\])|(?P<name>[A-Za-z0-9-]+)|
    (?P<times>\{[ ]*[0-9]+[ ]*(?:,[ ]*[0-9]*[ ]*)?\})|(?P<sign>::=|[|()*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_CHAR = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|[^\\]", re.DOTALL)
_RANGE = re.compile(r"(\\?.)(?:-(\\?.))?", re.DOTALL)
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n"} | {char: char for char in '\\"[]-'}


def _from_gbnf(grammar: Any) -> Lark:
    """Converts a grammar from llama.cpp's format with llguidance's converter. The grammar is checked and
    rewritten first, because the converter recurses and does not know all escapes and rule names.
    """
    text = grammar if isinstance(grammar, str) else getattr(grammar, "_grammar", None)
    if not isinstance(text, str):
        raise InvalidTypeError(f"grammar: expected GBNF or a LlamaGrammar, found {type(grammar).__name__}")
    if re.search("[\ud800-\udfff]", text):
        raise GrammarError("the grammar contains half of a surrogate pair; expected whole characters")
    _check("bytes", "grammar", len(text.encode()), GBNF_BYTES)
    _load()
    from llguidance.gbnf_to_lark import gbnf_to_lark

    checked = _Gbnf(text).rewritten()
    try:
        return Lark(gbnf_to_lark(checked))
    except Exception as error:
        raise GrammarError(f"the grammar does not parse: {error}") from None


class _Gbnf:
    def __init__(self, text: str) -> None:
        self._text = text
        self._names = {"root": "main"}
        self._defined: set[str] = set()

    def rewritten(self) -> str:
        """Returns the same grammar in the form that llguidance's converter accepts, with numbered rule names
        and rewritten escapes. Raises GrammarError.
        """
        out, at, depth, last = [], 0, 0, ""
        while at < len(self._text):
            match = _GBNF.match(self._text, at)
            if match is None:
                raise self._wrong(at, "an element (write a token as quoted text)")
            kind, found = str(match.lastgroup), match[0]
            if kind == "name":
                last = found
                found = self._names.setdefault(found, f"rule{len(self._names)}")
                _check("rules", "grammar", len(self._names), GBNF_RULES)
            elif found == "::=":
                self._defined.add(last)
            elif kind == "times":
                n_times = max(int(number) for number in re.findall("[0-9]+", found))
                _check("repetitions", "grammar", n_times, GRAMMAR_REPETITIONS)
            elif kind == "text":
                found = f'"{"".join(map(_written, self._chars(found, at)))}"'
            elif found == ".":
                found = "[\\x00-\U0010ffff]"
            elif kind == "set":
                found = self._set(found, at)
            depth += (found == "(") - (found == ")")
            _check("levels of nested groups", "grammar", depth, GBNF_DEPTH)
            out.append("" if kind == "comment" else found)
            at = match.end()
        unknown = [name for name in self._names if name not in self._defined]
        if unknown:
            raise GrammarError(f"the grammar has no rule {unknown[0][:60]!r}")
        # If a rule refers to a grammar without recursion, llguidance turns this grammar into one regular
        # expression. So the rule `root` only refers to the rule `main`.
        return "root ::= main\n" + "".join(out)

    def _wrong(self, at: int, expected: str) -> GrammarError:
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        where, found = f"line {line}, column {column}", repr(self._text[at : at + 12])
        return GrammarError(f"the grammar does not parse: {where}: expected {expected}, found {found}")

    def _chars(self, quoted: str, at: int) -> list[str]:
        """Returns the characters between quotes or brackets, with escapes decoded. A backslash stays in front
        of a character that needs it.
        """
        chars = []
        for match in _CHAR.finditer(quoted, 1, len(quoted) - 1):
            char = match[0]
            if char[0] != "\\":
                chars.append(char)
            elif char[1:] in _ESCAPED:
                chars.append("\\" + _ESCAPED[char[1:]])
            elif len(char) > 2 and int(char[2:], 16) < 0x110000 and not 0xD800 <= int(char[2:], 16) < 0xE000:
                chars.append("\\" + chr(int(char[2:], 16)))
            else:
                raise self._wrong(at + match.start(), "a character or its escape")
        return chars

    def _set(self, found: str, at: int) -> str:
        text = "".join(self._chars(found, at))
        is_not = text.startswith("^")
        ranges = []
        for low, high in _RANGE.findall(text[is_not:]):
            if high and high[-1] < low[-1]:
                raise self._wrong(at, "a range in ascending order")
            ranges.append(_written(low) + (f"-{_written(high)}" if high else ""))
        return f"[{'^' * is_not}{''.join(ranges)}]"


def _written(char: str) -> str:
    """Returns one character, which may have a backslash in front, in the form for quotes and character
    classes.
    """
    bare = char[-1]
    return bare if bare.isalnum() or bare == " " or ord(bare) > 127 else f"\\x{ord(bare):02x}"


def read_format(value: Any, name: str = "response_format") -> tuple[Any, bool]:
    """Returns the schema of a `response_format`, None for text, and whether the whole schema must be enforced
    (`strict`). name: name of the field, for error messages. Raises InvalidTypeError and InvalidValueError.
    """
    if not isinstance(value, Mapping):
        raise InvalidTypeError(f'{name}: expected a dict like {{"type": "json_object"}}, found {value!r}')
    kind, nested = value.get("type"), value.get("json_schema")
    of = nested if isinstance(nested, Mapping) else value
    schema = of.get("schema")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidValueError(f"{name}: expected type text, json_object or json_schema, found {kind!r}")
    if kind == "json_schema" and not isinstance(schema, Mapping):
        raise InvalidValueError(f"{name}: expected a schema that is an object in json_schema.schema")
    return None if kind == "text" else schema or {"type": "object"}, of.get("strict") is True
