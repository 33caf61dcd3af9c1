# SPDX-License-Identifier: MIT
"""What the atheris targets of this folder share: seeds, words, bounded time.

Run a target as `python tests/fuzz/fuzz_modelfile.py [libFuzzer options]`; it stops after 20 seconds unless
-max_total_time or -runs says otherwise, and fails on any exception that the target does not expect. Needs
`pip install atheris` (Linux, CPython).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import atheris

SECONDS = 20
_CORPUS = "EAGLECPP_FUZZ_CORPUS"  # set in the process that fuzzes; libFuzzer never returns from it


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
