# SPDX-License-Identifier: MIT
"""Counts the lines of code in each top-level folder, and compares them with a budget: python tests/weights.py

Blank lines, comments, docstrings and vendored files do not count. A folder over its budget fails
`tests/run.py lint`. Packages are listed for information only, because budgets for single packages made people
save lines inside functions. Budgets should only go down: a new feature names the code that it removes. If you
raise a budget, write the reason next to it.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {
    # The goals for native, eaglecpp and tests need features to go: searches for repeated and unused code find
    # almost nothing more. Leaving out mechanisms one by one, in one process, took 299 lines from native.
    "native": 16_748,  # Goal: 15,800 lines.
    "eaglecpp": 25_056,  # Goal: 22,000 lines.
    "convert": 4_500,
    "tests": 34_739,  # Goal: 30,000 lines.
    "benchmarks": 4_765,  # Goal: 4,800 lines, with one runner for all contestants (speed.py).
}
PACKAGES = (
    "native/algo", "native/grammar", "native/kernels", "native/ggml_hook", "native/target", "native/engine",
    "native/draft", "native", "eaglecpp/server", "eaglecpp/cli", "eaglecpp/engine", "eaglecpp/chat",
    "eaglecpp/store", "eaglecpp/train", "eaglecpp/learn", "eaglecpp/modelfile", "eaglecpp",
    "convert", "tests", "benchmarks",
)  # fmt: skip
"""A file counts for the longest name that contains it."""
VENDORED = "eaglecpp/server/static/vendor"
KINDS = {".py", ".h", ".cpp", ".inc", ".c", ".js", ".mjs", ".css", ".html", ".sh"}
# Matches whole strings and characters, so that a comment sign inside one is not a comment.
_C_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""",
    re.DOTALL,
)


def code_lines(path: Path) -> int:
    """Returns the number of lines that contain code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return len(set(_python_lines(text)))
    if path.suffix in {".html", ".sh"}:
        return sum(
            bool(line) and not line.startswith(("#", "<!--")) for line in map(str.strip, text.split("\n"))
        )
    return sum(bool(line.strip()) for line in _C_TOKENS.sub(_without_comment, text).split("\n"))


def _without_comment(found: re.Match[str]) -> str:
    """Replaces a comment by its line ends, and leaves a string unchanged."""
    return "\n" * found[0].count("\n") if found[0][:2] in ("//", "/*") else found[0]


def _python_lines(text: str) -> Iterator[int]:
    """Yields the numbers of lines with a token that is neither a comment nor a docstring."""
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    begins_statement = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}:
            begins_statement = True
        if token.type in no_code or token.type == tokenize.ENDMARKER:
            continue
        # a string at the beginning of a statement is a docstring
        if not (begins_statement and token.type == tokenize.STRING):
            yield from range(token.start[0], token.end[0] + 1)
        begins_statement = False


def weigh() -> dict[str, int]:
    """Returns the lines of code of each package."""
    found = dict.fromkeys(PACKAGES, 0)
    for top in BUDGETS:
        for path in sorted((ROOT / top).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix not in KINDS or name.startswith(VENDORED) or "__pycache__" in name:
                continue
            package = max((p for p in PACKAGES if name.startswith(p + "/")), key=len)
            found[package] += code_lines(path)
    return found


def main() -> int:
    found = weigh()
    is_over = False
    for top, budget in BUDGETS.items():
        inside = {name: n for name, n in found.items() if name.partition("/")[0] == top}
        n_all = sum(inside.values())
        is_over = is_over or n_all > budget
        print(f"{top:<20} {n_all:>6} of {budget}" + (f", over by {n_all - budget}" if n_all > budget else ""))
        for name, n in inside.items() if len(inside) > 1 else ():
            print(f"  {name if '/' in name else 'the rest':<18} {n:>6}")
    print(f"{'all':<20} {sum(found.values()):>6}")
    if is_over:
        print("A feature names what it removes: take out as much as you add.", file=sys.stderr)
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
