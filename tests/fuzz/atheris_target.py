# SPDX-License-Identifier: MIT
"""What the atheris targets of this folder share: instrumentation, seeds, words, bounded time.

Run a target as `python tests/fuzz/fuzz_modelfile.py [libFuzzer options]`; it stops after 20 seconds unless
-max_total_time or -runs says otherwise, and fails on any exception that the target does not expect. Needs
`pip install atheris` (Linux, CPython).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import atheris
from atheris.import_hook import AtherisSourceFileLoader

SECONDS = 20
_CORPUS = "EAGLECPP_FUZZ_CORPUS"  # set in the process that fuzzes; libFuzzer never returns from it


@contextmanager
def instrumented() -> Iterator[None]:
    """Imports of eaglecpp inside the block are instrumented; ends the process where that failed, because a
    fuzzer that sees no coverage finds nothing and says it is fine.
    """
    finder = _PlainLoaders()
    sys.meta_path.insert(0, finder)
    try:
        with atheris.instrument_imports(include=["eaglecpp"]):
            yield
    finally:
        sys.meta_path.remove(finder)
    ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "eaglecpp"]
    if not ours or not all(isinstance(module.__loader__, AtherisSourceFileLoader) for module in ours):
        sys.exit("eaglecpp was imported without instrumentation")


class _PlainLoaders:
    """Gives Python files Python's own loader. An editable install has another one, which atheris wraps in
    vain.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "eaglecpp":
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return spec
        places = spec.submodule_search_locations
        return importlib.util.spec_from_file_location(name, spec.origin, submodule_search_locations=places)


def fuzz(test_one: Callable[[bytes], None], seeds: Sequence[str], words: Sequence[str]) -> None:
    """Runs `test_one` on `seeds` and what libFuzzer makes of them and of `words`. Exits the process."""
    if _CORPUS in os.environ:
        atheris.Setup([*sys.argv, os.environ[_CORPUS]], test_one)
        atheris.Fuzz()
    options = sys.argv[1:]
    if not any(option.startswith(("-max_total_time", "-runs")) for option in options):
        options.append(f"-max_total_time={SECONDS}")
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for index, seed in enumerate(seeds):
            (corpus / str(index)).write_text(seed, encoding="utf-8", newline="")
        dictionary = Path(folder, "words")
        dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in words), encoding="ascii")
        bounds = ["-max_len=600", "-timeout=20", f"-artifact_prefix={folder}/"]  # a find is printed in Base64
        command = [sys.executable, sys.argv[0], f"-dict={dictionary}", *bounds, *options]
        done = subprocess.run(command, env={**os.environ, _CORPUS: str(corpus)}, check=False)
    sys.exit(done.returncode)


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02X}" for byte in word.encode("utf-8"))
