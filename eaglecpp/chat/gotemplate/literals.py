# SPDX-License-Identifier: MIT
"""The values of Go literals: quoted and raw strings, characters, integers and floats."""

from __future__ import annotations

import re

__all__ = ["FLOAT", "HEX_FLOAT", "LiteralError", "char_value", "merged", "number_value", "string_value"]

_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"])|([0-7]{3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))", re.DOTALL
)
_SIMPLE = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))
_INTEGER = re.compile(
    r"([+-]?)(?:0[xX]((?:_?[0-9a-fA-F])+)|0[bB]((?:_?[01])+)|0[oO]?((?:_?[0-7])+)|(0|[1-9](?:_?[0-9])*))"
)
_DIGITS = r"[0-9](?:_?[0-9])*"
_HEX = r"[0-9a-fA-F](?:_?[0-9a-fA-F])*"
FLOAT = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
HEX_FLOAT = re.compile(rf"[+-]?0[xX](?:_?{_HEX}(?:\.(?:{_HEX})?)?|\.{_HEX})[pP][+-]?{_DIGITS}")


class LiteralError(ValueError):
    """A literal that Go's syntax does not allow; the text is Go's."""


def string_value(text: str) -> str:
    """The string that a quoted or raw literal, quotes included, stands for. Raises LiteralError."""
    if text.startswith("`"):
        return text[1:-1].replace("\r", "")
    return merged(_unescaped(text[1:-1], forbidden="'"))


def merged(text: str) -> str:
    """The text with single bytes (surrogates U+DC80 to U+DCFF) joined where they make up a character."""
    if text.isascii() or text.isprintable():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def char_value(text: str) -> int:
    """The code point of a character literal, quotes included. Raises LiteralError."""
    value = _unescaped(text[1:-1], forbidden='"')
    if len(value) != 1:
        raise LiteralError(f"malformed character constant: {text}")
    code = ord(value)
    return code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code


def number_value(text: str) -> int | float:
    """The value of a number literal. Raises LiteralError for what is not a number or does not fit 64 bits."""
    match = _INTEGER.fullmatch(text)
    if match:
        sign, *digits = match.groups()
        base, found = next((base, d) for base, d in zip((16, 2, 8, 10), digits, strict=True) if d is not None)
        value = int(sign + found.replace("_", ""), base) if len(found) < 100 else 2**63
        if not -(2**63) <= value < 2**63:
            raise LiteralError(f'integer overflow: "{text}"')
        return value
    digits_only = text.replace("_", "")
    try:
        if FLOAT.fullmatch(text):
            if not set(text) & set(".eE"):  # as 08, which is not an octal number
                raise LiteralError(f'integer overflow: "{text}"')
            return _finite(float(digits_only), text)
        if HEX_FLOAT.fullmatch(text):
            return float.fromhex(digits_only)
    except OverflowError:
        pass
    raise LiteralError(f'illegal number syntax: "{text}"')


def _finite(value: float, text: str) -> float:
    if value in (float("inf"), float("-inf")):
        raise LiteralError(f'illegal number syntax: "{text}"')
    return value


def _unescaped(text: str, forbidden: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        simple, octal, byte, short, long, other = match.groups()
        if simple and simple != forbidden:
            return _SIMPLE[simple]
        if octal or byte:
            number = int(octal, 8) if octal else int(byte, 16)
            if number > 0xFF:
                raise LiteralError("invalid syntax")
            return chr(number) if number < 0x80 else chr(0xDC00 + number)  # a byte, as surrogateescape has it
        code = int(short or long or "-1", 16)
        if other is not None or not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise LiteralError("invalid syntax")
        return chr(code)

    return _ESCAPE.sub(replacement, text)
