# SPDX-License-Identifier: MIT
"""JSON schemas to GBNF.

Whoever sends a schema shares the server with others: its size, depth and number of parts are limited before
anything is made of it (native/grammar/grammar.h), repetitions are written as {m,n} and never unrolled,
and time and text grow with the schema only. A `$ref` becomes the name of a rule, so schemas may be recursive.

As in llama.cpp, properties come in the schema's order, required ones first, `allOf` joins the properties of
objects, and the bounds of `number` are not enforced. What is left out of a schema allows any value.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from re import _parser  # type: ignore[attr-defined] # Python's own, which gives what it read
from typing import Any

from llama_cpp.llama_grammar import PRIMITIVE_RULES, SPACE_RULE, STRING_FORMAT_RULES

from eaglecpp._extension import core
from eaglecpp.errors import GrammarError
from eaglecpp.limits import PATTERN_CHARS

N_DIGITS = 16  # of the largest integer, as in the rules of llama.cpp
_LIMITS = core.grammar_limits()
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
_NAME_CHARS = 200
"""Of a property's name that tell it from an additional one's."""
_JS_GROUP = re.compile(r"(?<!\\)((?:\\\\)*)\(\?<(?![=!])")
_HALF = re.compile("[\ud800-\udfff]")
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_RULES = {name: rule.content for name, rule in (PRIMITIVE_RULES | STRING_FORMAT_RULES).items()} | {
    "space": SPACE_RULE,
    # that of llama_cpp lets control characters in
    "char": r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})',
}


def schema_to_gbnf(text: str) -> str:
    """A grammar for values of the schema in `text`. Raises `GrammarError` for one that cannot be translated,
    that nothing fits, or that is above a limit.
    """
    _check("bytes", len(text.encode("utf-8", "surrogatepass")), _LIMITS["n_schema_bytes"])
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema cannot be read: {error}") from None
    return _Translator(schema).grammar()


def _check(what: str, found: int, most: int) -> None:
    if found > most:
        raise GrammarError(f"the JSON schema: at most {most} {what}, found {found}")


def _wrong(schema: Any, what: str) -> GrammarError:
    return GrammarError(f"the JSON schema: {what}, in {json.dumps(schema)[:80]}")


class _Translator:
    """Rules of a schema have numbers for names; those of llama_cpp, which are always there, have words."""

    def __init__(self, schema: Any) -> None:
        self._rules = _RULES | {"root": ""}
        self._n_nodes = self._n_pattern_chars = self._depth = 0
        self._rule_of_ref: dict[tuple[int, str], str] = {(id(schema), "#"): "root"}
        # rule, schema, and the schema that its references mean
        self._waiting: list[tuple[str, Any, Any]] = [("root", schema, schema)]

    def grammar(self) -> str:
        while self._waiting:
            name, schema, base = self._waiting.pop()
            self._rules[name] = self._value(schema, base)
        return "\n".join(f"{name} ::= {rule}" for name, rule in self._rules.items())

    def _add(self, rule: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules[name] = rule
        return name

    def _part(self, schema: Any, base: Any) -> str:
        """The name of a rule for a schema inside another."""
        self._depth += 1
        rule = self._value(schema, base)
        self._depth -= 1
        return rule if rule in self._rules else self._add(rule)

    def _value(self, schema: Any, base: Any) -> str:
        """What follows `::=` in the rule of a schema; perhaps the name of another rule. base: what its
        references mean.
        """
        self._n_nodes += 1
        _check("schemas", self._n_nodes, _LIMITS["n_schema_nodes"])
        _check("schemas within each other", self._depth, _LIMITS["n_schema_depth"])
        if schema is True:
            return "value"
        if not isinstance(schema, dict):
            raise _wrong(schema, "expected an object or true")
        if "$id" in schema:
            base = schema
        if "$ref" in schema:
            return self._reference(schema, base)
        for key in ("oneOf", "anyOf"):
            if key in schema:
                return self._union(_list(schema, key), base)
        if "const" in schema:
            return _literal(_json(schema["const"]))
        if "enum" in schema:
            return " | ".join(_literal(_json(value)) for value in _list(schema, "enum"))
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._union([{**schema, "type": one} for one in _list(schema, "type")], base)
        if kind is not None and kind not in _TYPES:
            raise _wrong(schema, f"type must be one of {', '.join(_TYPES)}, found {kind!r}")
        return self._typed(schema, kind, base)

    def _typed(self, schema: dict[str, Any], kind: str | None, base: Any) -> str:
        if kind in (None, "object") and (
            "properties" in schema or schema.get("additionalProperties", True) is not True
        ):
            required = [one for one in _list(schema, "required", []) if isinstance(one, str)]
            more = schema.get("additionalProperties", False)
            return self._object(_dict(schema, "properties"), required, more, base)
        if "allOf" in schema:
            parts = _list(schema, "allOf")
            return (
                self._all_of(parts, base) if kind in (None, "object") else self._joined(schema, parts, base)
            )
        if kind in (None, "array") and schema.keys() & {"items", "prefixItems", "minItems", "maxItems"}:
            return self._array(schema, base)
        if kind in (None, "string") and schema.keys() & {"pattern", "format", "minLength", "maxLength"}:
            return self._string(schema, kind)
        if kind == "integer":
            low, high = _bounds(schema)
            if low is not None or high is not None:
                return f"({integers(low, high)}) space"
        return kind or "value"

    def _union(self, schemas: Sequence[Any], base: Any) -> str:
        return " | ".join(self._part(one, base) for one in schemas)

    def _reference(self, schema: dict[str, Any], base: Any) -> str:
        ref = schema["$ref"]
        if not isinstance(ref, str) or ref.split("/")[0] != "#":
            raise _wrong(schema, "only references into the schema itself (#/...) are supported")
        key = id(base), ref
        if key not in self._rule_of_ref:
            target = _follow(ref, base, schema)
            self._rule_of_ref[key] = self._add("")
            self._waiting.append((self._rule_of_ref[key], target, base))
        return self._rule_of_ref[key]

    def _object(self, properties: Mapping[str, Any], required: Collection[str], more: Any, base: Any) -> str:
        pairs = {
            key: self._add(f'{_literal(_json(key))} space ":" space {self._part(schema, base)}')
            for key, schema in properties.items()
        }
        first = ' "," space '.join(pairs[key] for key in pairs if key in required)
        optional = [pairs[key] for key in pairs if key not in required]
        # each optional pair, and what may follow it: any of those after it
        rest, alternatives = "", []
        if more is not False:
            names = [name for name in properties if not _HALF.search(name)]  # half a pair is always escaped
            key = f'"\\"" {self._no_name(names)} "\\"" space' if names else "string"
            pair = self._add(f'{key} ":" space {self._part(more, base)}')
            rest = f'( "," space {pair} )*'
            alternatives.append(f"{pair} {rest}")
        for pair in reversed(optional):
            alternatives.append(f"{pair} {rest}")
            rest = self._add(f'( "," space {pair} )? {rest}')
        rule = f'"{{" space {first}'
        if alternatives:
            either = " | ".join(reversed(alternatives))
            rule += f' ( "," space ( {either} ) )?' if first else f" ( {either} )?"
        return rule + ' "}" space'

    def _no_name(self, names: Sequence[str]) -> str:
        """What is between the quotes of a key that is none of these names. `\\u` stands only behind what
        tells the key from all of them, so no other spelling of a name gets through.
        """
        after: dict[str, list[str]] = {}
        for name in names:
            if name:
                after.setdefault(name[0], []).append(name[1:_NAME_CHARS])
        found = [f"{_set([(ord(char),) * 2 for char in after], True)} char*"]
        for char, rest in after.items():
            found.append(f"{_set([(ord(char),) * 2], False)} {self._add(self._no_name(rest))}")
        return f"( {' | '.join(found)} ){'' if '' in names else '?'}"

    def _all_of(self, parts: list[Any], base: Any) -> str:
        if len(parts) == 1:
            return self._part(parts[0], base)
        properties: dict[str, Any] = {}
        for part in parts:
            found = _follow(part["$ref"], base, part) if isinstance(part, dict) and "$ref" in part else part
            if not isinstance(found, dict) or "properties" not in found:
                raise _wrong(part, "allOf can join objects with properties only")
            properties |= _dict(found, "properties")
        return self._object(properties, properties, False, base)

    def _joined(self, schema: dict[str, Any], parts: list[Any], base: Any) -> str:
        """A schema whose other keywords stand in its parts."""
        whole = {key: value for key, value in schema.items() if key != "allOf"}
        for part in parts:
            found = _follow(part["$ref"], base, part) if isinstance(part, dict) and "$ref" in part else part
            if not isinstance(found, dict) or any(whole.get(key, found[key]) != found[key] for key in found):
                raise _wrong(schema, "allOf can join objects, and keywords that stand once")
            whole |= found
        return self._part(whole, base)

    def _array(self, schema: dict[str, Any], base: Any) -> str:
        items = _list(schema, "prefixItems") if "prefixItems" in schema else schema.get("items", True)
        if isinstance(items, list):
            return '"[" space ' + ' "," space '.join(self._part(item, base) for item in items) + ' "]" space'
        low, high = _sizes(schema, "minItems", "maxItems")
        if high == 0:
            return '"[" space "]" space'
        item = self._part(items, base)
        more = f'("," space {item}){_times(max(low - 1, 0), None if high is None else high - 1)}'
        return f'"[" space {item} {more} "]" space' if low else f'"[" space ({item} {more})? "]" space'

    def _string(self, schema: dict[str, Any], kind: str | None) -> str:
        form = schema.get("format")
        if "pattern" in schema:
            self._n_pattern_chars += len(str(schema["pattern"]))
            _check("characters in all patterns", self._n_pattern_chars, PATTERN_CHARS)
            return f'"\\"" ({_pattern(schema)}) "\\"" space'
        if isinstance(form, str) and re.fullmatch(r"uuid[1-5]?", form):
            return "uuid"
        if isinstance(form, str) and f"{form}-string" in STRING_FORMAT_RULES:
            return f"{form}-string"
        if schema.keys() & {"minLength", "maxLength"}:
            return f'"\\"" char{_times(*_sizes(schema, "minLength", "maxLength"))} "\\"" space'
        return "string" if kind or form else "value"


def _follow(ref: Any, base: Any, schema: Any) -> Any:
    """What a reference leads to."""
    target = base
    for part in urllib.parse.unquote(str(ref)[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and re.fullmatch(r"[0-9]{1,9}", key) and int(key) < len(target):
            target = target[int(key)]
        else:
            raise _wrong(schema, f"the reference leads nowhere: there is no {key[:40]!r}")
    return target


def _list(schema: Mapping[str, Any], key: str, default: list[Any] | None = None) -> list[Any]:
    found = schema.get(key, default)
    if not isinstance(found, list) or (not found and default is None):
        raise _wrong(schema, f"{key} must be a list with at least one entry")
    return found


def _dict(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = schema.get(key, {})
    if not isinstance(found, dict):
        raise _wrong(schema, f"{key} must be an object")
    return found


def _sizes(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    """The bounds of a length; None: no limit."""
    least, most = 0 if schema.get(low) is None else schema[low], schema.get(high)
    for key, value in ((low, least), (high, most)):
        if value is not None and (type(value) is not int or value < 0):
            raise _wrong(schema, f"{key} must be a whole number of 0 or more")
        _check(f"repetitions in {key}", value or 0, _LIMITS["n_repetitions"])
    if most is not None and most < least:
        raise _wrong(schema, f"nothing has at least {least} and at most {most} of something ({low}, {high})")
    return least, most


def _times(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}"


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)  # half a surrogate pair is not UTF-8


def _literal(text: str) -> str:
    return '"' + text.translate(_ESCAPES) + '"'


# Patterns

_SETS = {
    "DIGIT": [(48, 57)],
    "WORD": [(48, 57), (65, 90), (95, 95), (97, 122)],
    "SPACE": [(9, 13), (32, 32), (160, 160), (0x2028, 0x2029)],
}
_LINE_ENDS = [(10, 10), (13, 13)]
_LAST = 0x10FFFF


def _pattern(schema: Mapping[str, Any]) -> str:
    """The part of a grammar between the quotes of a string that follows a regular expression: characters,
    classes, groups, alternatives and repetitions. What JSON escapes in a string is escaped.
    """
    pattern = schema["pattern"]
    if not isinstance(pattern, str):
        raise _wrong(schema, "a pattern must be a text")
    ends = re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern) is not None
    inside = _JS_GROUP.sub(r"\1(?P<", pattern[pattern.startswith("^") : len(pattern) - ends])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a class may mean in a later Python
            parsed = _parser.parse(inside)
        if parsed.state.flags != re.UNICODE:
            raise ValueError("flags are not supported")
        before, behind = "" if pattern.startswith("^") else "char*", "" if ends else "char*"
        return f"{before} ({_sequence(parsed)}) {behind}".strip()
    except RecursionError:
        raise _wrong(schema, "pattern: nested too deeply") from None
    except (re.error, ValueError, OverflowError) as error:
        raise _wrong(schema, f"pattern: {error}") from None


def _sequence(parts: Iterable[Any]) -> str:
    """GBNF for what Python's parser made of a pattern. Raises ValueError for what no grammar can say."""
    found = []
    for kind, value in parts:
        match str(kind):
            case "LITERAL" | "NOT_LITERAL" as name:
                found.append(_set([(value, value)], name == "NOT_LITERAL"))
            case "ANY":
                found.append(_set(_LINE_ENDS, is_not=True))
            case "IN":
                found.append(_class(value))
            case "BRANCH":
                found.append(f"({' | '.join(map(_sequence, value[1]))})")
            case "SUBPATTERN" if not value[1] and not value[2]:
                found.append(f"({_sequence(value[3])})")
            case "MAX_REPEAT" | "MIN_REPEAT":  # as few as possible: the same texts
                low, high, part = value
                bounds = [n for n in (low, high) if n is not _parser.MAXREPEAT]
                _check("repetitions in a pattern", max(bounds), _LIMITS["n_repetitions"])
                found.append(f"({_sequence(part)}){_times(low, high if len(bounds) == 2 else None)}")
            case name:
                raise ValueError(f"{name.lower()} is not supported")
    return " ".join(found) or '""'


def _class(items: Sequence[Any]) -> str:
    ranges, is_not = [], False
    for kind, value in items:
        name = str(value).removeprefix("CATEGORY_")
        if str(kind) == "NEGATE":
            is_not = True
        elif str(kind) == "CATEGORY":
            if name.startswith("NOT_") and len(items) > 1:
                raise ValueError("the opposite of a class inside a class is not supported")
            is_not |= name.startswith("NOT_")
            ranges += _SETS[name.removeprefix("NOT_")]
        else:
            ranges.append(value if str(kind) == "RANGE" else (value, value))
    return _set(ranges, is_not)


def _set(ranges: Sequence[tuple[int, int]], is_not: bool) -> str:
    """GBNF for one of these characters in a JSON string."""
    if any(0xD800 <= edge <= 0xDFFF for edges in ranges for edge in edges):
        raise ValueError("half a surrogate pair is not a character")
    if is_not:
        others, at = [], 0
        for low, high in sorted(ranges):
            others.append((at, low - 1))
            at = max(at, high + 1)
        ranges = [(low, high) for low, high in (*others, (at, _LAST)) if low <= high]
    escaped = [c for c in (*range(32), 34, 92) if any(low <= c <= high for low, high in ranges)]
    plain = []
    for first, last in ((32, 33), (35, 91), (93, _LAST)):  # what JSON does not escape
        plain += [(max(low, first), min(high, last)) for low, high in ranges if low <= last and high >= first]
    classes = "".join(_edge(low) + (f"-{_edge(high)}" if high > low else "") for low, high in plain)
    forms = [f"[{classes}]"] if classes else []
    if is_not:  # nobody means those
        escaped = [c for c in escaped if c in (9, 10, 13, 34, 92)]
    forms += [_literal(json.dumps(chr(c))[1:-1]) for c in escaped]
    return forms[0] if len(forms) == 1 else f"({' | '.join(forms)})"


def _edge(code: int) -> str:
    return f"\\U{code:08X}" if code > 126 or chr(code) in '[]^-\\"' else chr(code)


# Integers
def _bounds(schema: dict[str, Any]) -> tuple[int | None, int | None]:
    """The least and the largest integer that a schema allows; None: no bound. Booleans are draft 4's."""

    numbers = {
        key: value for key, value in schema.items() if type(value) in (int, float) and abs(value) < math.inf
    }
    for name in ("Minimum", "Maximum"):
        if schema.get(f"exclusive{name}") is True and name.lower() in numbers:
            numbers[f"exclusive{name}"] = numbers.pop(name.lower())
    lows = [math.ceil(numbers[key]) for key in numbers.keys() & {"minimum"}]
    lows += [math.floor(numbers[key]) + 1 for key in numbers.keys() & {"exclusiveMinimum"}]
    highs = [math.floor(numbers[key]) for key in numbers.keys() & {"maximum"}]
    highs += [math.ceil(numbers[key]) - 1 for key in numbers.keys() & {"exclusiveMaximum"}]
    low, high = max(lows, default=None), min(highs, default=None)
    if low is not None and high is not None and low > high:
        raise GrammarError(f"the JSON schema: no integer is at least {low} and at most {high}")
    return low, high


def integers(low: int | None, high: int | None) -> str:
    """GBNF alternatives for the integers from low to high, both included; None: up to N_DIGITS digits."""
    most = 10**N_DIGITS - 1
    low, high = max(-most, -most if low is None else low), min(most, most if high is None else high)
    if low > high:
        raise GrammarError(f"integers have up to {N_DIGITS} digits, the JSON schema asks for longer ones")
    parts = list(_naturals(max(low, 0), high)) if high >= 0 else []
    if low < 0:
        parts.append(f'"-" ({" | ".join(_naturals(max(1, -high), -low))})')
    return " | ".join(parts)


def _naturals(low: int, high: int) -> Iterator[str]:
    """Alternatives for low to high, 0 <= low <= high, one or more for each number of digits."""
    for n in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 0 if n == 1 else 10 ** (n - 1))
        yield _same_length(str(first), str(min(high, 10**n - 1)))


def _same_length(low: str, high: str) -> str:
    """GBNF for the numbers between two of the same number of digits."""
    rest = len(low) - 1
    least, most = "0" * rest, "9" * rest

    def begin(first: int, last: int, low: str, high: str) -> str:
        if (low, high) != (least, most):
            return f"[{first}-{last}] ({_same_length(low, high)})"
        return f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else "")

    first, last = int(low[0]), int(high[0])
    if first == last or (low[1:], high[1:]) == (least, most):
        return begin(first, last, low[1:], high[1:])
    parts = [begin(first, first, low[1:], most), begin(last, last, least, high[1:])]
    if last - first > 1:
        parts.append(begin(first + 1, last - 1, least, most))
    return " | ".join(parts)
