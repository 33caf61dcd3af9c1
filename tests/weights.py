# SPDX-License-Identifier: MIT
"""How many lines of code each package has, against a budget: python tests/weights.py

Blank lines, comments and docstrings do not count, nor do files that were vendored. A package over its budget
fails `tests/run.py lint`. Budgets only go down: whoever adds a feature names what it removes. To raise one,
write the reason beside it.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Files are counted for the first package that holds them.
BUDGETS = {
    "native/algo": 2774,  # issue 54: on tiny targets the way back to plain rounds is paid for
    "native/grammar": 348,
    "native/kernels": 2839,  # a long cache is read once, in its order (issue 56)
    "native/ggml_hook": 1299,
    "native/target": 3104,  # issue 69: threads and memory of containers
    "native/engine": 2266,  # issue 56: the same
    "native/draft": 2095,  # issue 58: on devices a round of a block is one graph and one wait
    "native": 2421,  # issue 69: limits of containers (cgroups v1 and v2), macOS's free memory
    "eaglecpp/server": 4208,  # issue 57: drafters and sizes in the words of the command line
    "eaglecpp/cli": 3262,  # the command `convert` stands here, which makes convert/ 109 lines less
    "eaglecpp/engine": 3212,  # issue 56: images' grids; loops end, one way to open without a drafter
    "eaglecpp/chat": 2557,  # issue 69: one reader for each kind of call form, each with its own ends
    "eaglecpp/store": 2041,  # issue 57: copies of stored files are known; bars of downloads
    "eaglecpp/train": 3740,  # DFlash2 is trained, too, and blocks by their first slots
    "eaglecpp/learn": 524,  # issue 69: private folders, bounds on records, no orphaned training
    "eaglecpp/modelfile": 790,
    "eaglecpp": 3611,  # issue 57: a server elsewhere, whose answers are checked; Llama's types; --lora
    "convert": 4533,  # issue 69: the slot that speculators' DSpark drafts from first
    "tests": 33822,  # issue 69: marks of every family in every value, keys of the prompt, containers, seeds
    "benchmarks": 6235,  # issue 58: the GPU kit fits transfers, first answers; issue 56: attention.py
}
VENDORED = "eaglecpp/server/static/vendor"
KINDS = {".py", ".h", ".cpp", ".inc", ".c", ".js", ".mjs", ".css", ".html", ".sh"}
# A string or a character is kept whole, so that what looks like a comment inside it is none.
_C_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""",
    re.DOTALL,
)


def code_lines(path: Path) -> int:
    """Lines of a file that hold code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return len(set(_python_lines(text)))
    if path.suffix in {".html", ".sh"}:
        return sum(
            bool(line) and not line.startswith(("#", "<!--")) for line in map(str.strip, text.split("\n"))
        )
    return sum(bool(line.strip()) for line in _C_TOKENS.sub(_without_comment, text).split("\n"))


def _without_comment(found: re.Match[str]) -> str:
    """A comment as the line ends that it spans; a string as it is."""
    return "\n" * found[0].count("\n") if found[0][:2] in ("//", "/*") else found[0]


def _python_lines(text: str) -> Iterator[int]:
    """Numbers of the lines that hold a token which is neither comment nor docstring."""
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    begins_statement = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}:
            begins_statement = True
        if token.type in no_code or token.type == tokenize.ENDMARKER:
            continue
        # a statement that begins with a string is a docstring, or a text about the name above it
        if not (begins_statement and token.type == tokenize.STRING):
            yield from range(token.start[0], token.end[0] + 1)
        begins_statement = False


def weigh() -> dict[str, int]:
    """Lines of each package of `BUDGETS`."""
    found = dict.fromkeys(BUDGETS, 0)
    for top in ("native", "eaglecpp", "convert", "tests", "benchmarks"):
        for path in sorted((ROOT / top).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix not in KINDS or name.startswith(VENDORED) or "__pycache__" in name:
                continue
            package = max((p for p in BUDGETS if name.startswith(p + "/")), key=len)
            found[package] += code_lines(path)
    return found


def main() -> int:
    found = weigh()
    print(f"{'package':<20} {'lines':>6} {'budget':>6}")
    for package, n in found.items():
        over = f"  over by {n - BUDGETS[package]}" if n > BUDGETS[package] else ""
        print(f"{package:<20} {n:>6} {BUDGETS[package]:>6}{over}")
    print(f"{'all':<20} {sum(found.values()):>6} {sum(BUDGETS.values()):>6}")
    if any(n > BUDGETS[package] for package, n in found.items()):
        print(
            "A feature names what it removes (CONTRIBUTING.md): take out as much as you add.", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
