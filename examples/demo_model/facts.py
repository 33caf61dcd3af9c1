# SPDX-License-Identifier: MIT
"""The facts that the demo model learns: names of Python's standard library, their signatures and summaries.

They are read through `inspect` from the interpreter that runs this script. Docstrings are under the PSF
License Version 2, see NOTICE. The list omits modules whose import has side effects.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["FAMILIAR", "MODULES", "Fact", "collect"]

# Users ask about these modules most, so the training repeats their facts.
FAMILIAR = [
    "builtins",
    "os",
    "os.path",
    "sys",
    "re",
    "json",
    "math",
    "random",
    "datetime",
    "collections",
    "itertools",
    "functools",
    "pathlib",
    "string",
    "time",
    "subprocess",
    "shutil",
    "copy",
    "operator",
    "statistics",
    "glob",
]

MODULES = (
    *FAMILIAR,
    *[
        "abc",
        "argparse",
        "array",
        "ast",
        "asyncio",
        "atexit",
        "base64",
        "binascii",
        "bisect",
        "bz2",
        "calendar",
        "cmath",
        "cmd",
        "code",
        "codecs",
        "colorsys",
        "concurrent.futures",
        "configparser",
        "contextlib",
        "contextvars",
        "csv",
        "dataclasses",
        "decimal",
        "difflib",
        "dis",
        "enum",
        "errno",
        "filecmp",
        "fileinput",
        "fnmatch",
        "fractions",
        "ftplib",
        "gc",
        "getpass",
        "gettext",
        "graphlib",
        "gzip",
        "hashlib",
        "heapq",
        "hmac",
        "html",
        "html.parser",
        "http",
        "http.client",
        "imaplib",
        "importlib",
        "inspect",
        "io",
        "ipaddress",
        "keyword",
        "linecache",
        "locale",
        "logging",
        "lzma",
        "mailbox",
        "mimetypes",
        "mmap",
        "multiprocessing",
        "numbers",
        "pickle",
        "pkgutil",
        "platform",
        "plistlib",
        "poplib",
        "pprint",
        "profile",
        "queue",
        "quopri",
        "reprlib",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shelve",
        "shlex",
        "signal",
        "smtplib",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "stat",
        "struct",
        "symtable",
        "sysconfig",
        "tarfile",
        "tempfile",
        "textwrap",
        "threading",
        "timeit",
        "token",
        "tokenize",
        "tomllib",
        "trace",
        "traceback",
        "types",
        "typing",
        "unicodedata",
        "unittest",
        "urllib.parse",
        "urllib.request",
        "uuid",
        "venv",
        "warnings",
        "wave",
        "weakref",
        "webbrowser",
        "xml.dom",
        "xml.etree.ElementTree",
        "zipapp",
        "zipfile",
        "zipimport",
        "zlib",
        "zoneinfo",
    ],
)

# Modules whose facts include the methods of their classes.
_WITH_METHODS = {
    *FAMILIAR,
    *[
        "argparse",
        "configparser",
        "csv",
        "decimal",
        "enum",
        "fractions",
        "io",
        "logging",
        "queue",
        "socket",
        "tarfile",
        "threading",
        "zipfile",
    ],
}

_MAX_WORDS = 42
_ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|resp|approx|Mr|Dr|St|No)\.$")


@dataclass(frozen=True)
class Fact:
    """One name.

    name:      dotted name: "os.path.join", "str.upper", "len"
    module:    module to import it from; "builtins" if no import is needed
    kind:      "function", "class", "method", "module" or "exception"
    signature: "join(a, *p)" with the dotted name, "" if Python does not know it
    summary:   first sentence of the docstring, with a full stop
    more:      rest of the first paragraph, "" if it has one sentence
    members:   of a module: its public names
    """

    name: str
    module: str
    kind: str
    signature: str
    summary: str
    more: str
    members: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def is_familiar(self) -> bool:
        """True if it is in one of the modules that users ask about most."""
        return self.module in FAMILIAR


def collect() -> list[Fact]:
    """Returns all facts, sorted by name. The result depends only on the Python version."""
    found: dict[str, Fact] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for fact in _of_module(name, module):
            found.setdefault(fact.name, fact)
    return sorted(found.values(), key=lambda fact: fact.name)


def _of_module(name: str, module: ModuleType) -> Iterator[Fact]:
    public = _public_names(name, module)
    summary, more = _sentences(module.__doc__)
    if summary and name != "builtins":
        yield Fact(name, name, "module", "", summary, more, tuple(public))
    prefix = "" if name == "builtins" else f"{name}."
    for short in public:
        value = getattr(module, short)
        if inspect.isclass(value):
            yield from _of_class(f"{prefix}{short}", name, value)
        elif callable(value):
            yield from _fact(f"{prefix}{short}", name, "function", value)


def _of_class(name: str, module: str, value: type) -> Iterator[Fact]:
    kind = "exception" if issubclass(value, BaseException) else "class"
    yield from _fact(name, module, kind, value)
    if kind == "exception" or module not in _WITH_METHODS:
        return
    for short in sorted(vars(value)):
        if not short.startswith("_") and callable(getattr(value, short, None)):
            yield from _fact(f"{name}.{short}", module, "method", getattr(value, short))


def _fact(name: str, module: str, kind: str, value: Any) -> Iterator[Fact]:
    doc = value.__doc__ if isinstance(value.__doc__, str) else None
    if kind == "class" and doc == type.__doc__:
        doc = None
    summary, more = _sentences(doc, name.rpartition(".")[2])
    if len(summary) >= 20 and not summary.startswith(name.rpartition(".")[2] + "("):
        yield Fact(name, module, kind, _signature(name, value, doc, kind == "method"), summary, more)


def _public_names(name: str, module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    names = listed if listed is not None else [n for n in vars(module) if not n.startswith("_")]
    kept = []
    for short in names:
        value = getattr(module, short, None)
        home = getattr(value, "__module__", None)
        is_own = listed is not None or home is None or home.lstrip("_").split(".")[0] in name.split(".")[0]
        if callable(value) and is_own and not short.startswith("_") and short.isascii():
            kept.append(short)
    return sorted(set(kept))


def _signature(name: str, value: Any, doc: str | None, bound: bool) -> str:
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (ValueError, TypeError):
        first = (doc or "").strip().partition("\n")[0]
        match = re.match(rf"{re.escape(name.rpartition('.')[2])}(\([^)]*\))", first)
        return name + match[1] if match else ""
    if bound and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    bare = [p.replace(annotation=p.empty, default=_short_default(p)) for p in parameters]
    try:
        text = str(inspect.Signature(bare))
    except ValueError:
        return ""
    text = text.replace(", /", "").replace("(/)", "()")
    return name + text if len(text) <= 60 and "<" not in text and "object at" not in text else ""


def _short_default(parameter: inspect.Parameter) -> Any:
    value = parameter.default
    return (
        value if isinstance(value, str | int | float | bool | type(None)) or value == () else parameter.empty
    )


def _sentences(doc: str | None, short: str = "") -> tuple[str, str]:
    """Returns the first sentence of a docstring and the rest of its first paragraph, cut to `_MAX_WORDS`."""
    if not doc:
        return "", ""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(doc))
    if short and len(paragraphs) > 1 and re.match(rf"[\w.]*{re.escape(short)}\(.*\)", paragraphs[0]):
        paragraphs = paragraphs[1:]  # the docstring of a C function begins with its signature
    text = " ".join(paragraphs[0].split())
    if short:
        text = re.sub(
            rf"^[\w.]*{re.escape(short)}\([^)]*\)( -> [\w\[\], .]+?)?\s*(--?|:|\.|->)?\s+", "", text
        )
    if (
        not text.isascii()
        or ">>>" in text
        or re.search(r"@|^\w+ = |\.\. |:\w+:|https?:|\bXXX\b|\*{3}|={3}|-{3}", text)
    ):
        return "", ""
    text = text.replace("``", "`")
    sentences = _split(text)
    if not sentences or len(sentences[0].split()) > _MAX_WORDS:
        return "", ""
    summary = sentences[0][0].upper() + sentences[0][1:].rstrip(".:;,") + "."
    more = ""
    for sentence in sentences[1:]:
        if len((summary + more + sentence).split()) > _MAX_WORDS or not sentence.endswith("."):
            break
        more += (" " if more else "") + sentence
    return summary, more


def _split(text: str) -> list[str]:
    sentences, begun = [], 0
    for match in re.finditer(r"[.!?](?=\s+[A-Z`'\"]|$)", text):
        if not _ABBREVIATED.search(text[: match.end()]):
            sentences.append(text[begun : match.end()].strip())
            begun = match.end()
    rest = text[begun:].strip()
    return [*sentences, rest] if rest else sentences
