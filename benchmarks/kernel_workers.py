# SPDX-License-Identifier: MIT
"""Worker processes that keep one target open and time the target on request, with eaglecpp or with llama.cpp
alone.

eaglecpp's extension puts kernels into ggml's CPU backend, so llama.cpp must be measured in a process that
never loaded the extension. Two workers stay open and take turns, so that noise of the machine affects both
workers alike. A worker reads one JSON object per line from stdin, and answers each line with one JSON object
on stdout:

    {"do": "rows", "n": 4, "behind": 1000, "repeats": 5}   milliseconds of each batch of rows, all with logits
    {"do": "prompt", "n": 512}                             milliseconds of a prompt, logits of its last row
        with "is_processor_time": true                     processor time of all its threads instead
    {"do": "memory"}                                       bytes since before the target was loaded, after
                                                           a first short prompt, and prompt_ms of that

A worker's first line is {"load_ms": ...}. The kind `theirs` runs llama.cpp's default options through
llama-cpp-python's low-level functions; `rows` runs eaglecpp's `Target`, and `engine` its `Engine` without a
drafter.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

ROWS_MAX = 16
N_WARM = 16  # Number of tokens that are run before memory is measured. They page weights in and build graphs.


class Worker:
    """A running worker; a context manager. `kind`: "theirs", "rows" or "engine", as in the module's
    docstring. `libraries`: a folder whose libggml-cpu replaces llama_cpp's libggml-cpu.
    """

    def __init__(
        self,
        kind: str,
        target: Path,
        n_ctx: int,
        n_threads: int,
        libraries: Path | None = None,
        **options: Any,
    ) -> None:
        setup = {
            "kind": kind,
            "target": str(target),
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "options": options,
        }
        self.name = f"{kind} {target.name}"
        # llama.cpp may write more than a pipe can hold, so its output goes to a file.
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the worker
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {}),
        )
        self.load_ms: float = self._answer()["load_ms"]

    def ask(self, do: str, **arguments: Any) -> Any:
        """Sends a request to the worker and returns the answer. Raises `SystemExit` with the worker's output
        if the worker died.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._answer()["result"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        status = self.process.wait()
        self.log.seek(0)
        raise SystemExit(f"{self.name}: ended with {status}\n{self.log.read()[-2000:]}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Timed(Protocol):
    """Interface of an object that a worker times."""

    n_vocab: int

    def rows(self, prefix: list[int], tokens: list[int], repeats: int) -> list[float]: ...
    def prompt(self, tokens: list[int]) -> float: ...


class Theirs:
    """llama.cpp through `llama_cpp`, with the default options of llama.cpp's own programs."""

    def __init__(self, setup: dict[str, Any]) -> None:
        import llama_cpp

        self.lib = llama_cpp
        model_params = llama_cpp.llama_model_default_params()
        model_params.use_extra_bufts = setup["options"].get("repack", True)
        model = llama_cpp.llama_model_load_from_file(setup["target"].encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        # llama.cpp's programs use one thread per physical core. The default of llama.cpp's library is 4
        # threads.
        params.n_threads = params.n_threads_batch = setup["n_threads"]
        params.n_ctx = setup["n_ctx"]
        for name in ("type_k", "type_v"):
            if name in setup["options"]:
                setattr(params, name, getattr(llama_cpp, f"GGML_TYPE_{setup['options'][name].upper()}"))
        self.context = llama_cpp.llama_init_from_model(model, params) if model else None
        if not self.context:
            raise SystemExit(f"llama.cpp could not open {setup['target']}")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.n_batch = int(llama_cpp.llama_n_batch(self.context))
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(self.n_batch, 0, 1)
        self.in_cache: list[int] | None = None

    def _fill(self, tokens: list[int], first: int, all_logits: bool) -> None:
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, first + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
            self.batch.logits[i] = all_logits or i == len(tokens) - 1

    def _run(self) -> float:
        start = time.perf_counter()
        status = self.lib.llama_decode(self.context, self.batch)
        self.lib.llama_synchronize(self.context)
        ms = 1000 * (time.perf_counter() - start)
        if status != 0:
            raise SystemExit(f"llama_decode: {status}")
        return ms

    def rows(self, prefix: list[int], tokens: list[int], repeats: int) -> list[float]:
        if prefix != self.in_cache:
            self.prompt(prefix)
            self.in_cache = prefix
        ms = []
        for _ in range(repeats):
            self._fill(tokens, len(prefix), True)
            ms.append(self._run())
            self.lib.llama_memory_seq_rm(self.memory, 0, len(prefix), -1)
        return ms

    def prompt(self, tokens: list[int]) -> float:
        self.lib.llama_memory_clear(self.memory, False)
        self.in_cache = None
        ms = 0.0
        for at in range(0, len(tokens), self.n_batch):
            self._fill(tokens[at : at + self.n_batch], at, False)
            ms += self._run()
        return ms


class OurRows:
    """Times only the verification of a round, without sampling and detokenizing: a batch with a chain of
    tokens, all with logits.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        from eaglecpp.lowlevel import EngineOptions, Target

        options = EngineOptions()
        options.target_path = setup["target"]
        options.n_ctx, options.n_threads = setup["n_ctx"], setup["n_threads"]
        options.n_draft_max = ROWS_MAX - 1
        for name, value in setup["options"].items():
            setattr(options, name, value)
        self.target = Target(options, [])
        self.n_vocab = self.target.n_vocab

    def rows(self, prefix: list[int], tokens: list[int], repeats: int) -> list[float]:
        return self.target.time_rows(prefix, tokens, repeats)

    def prompt(self, tokens: list[int]) -> float:
        raise SystemExit("only the worker 'engine' can time prompts")


class OurEngine:
    """Times the engine with its default options."""

    def __init__(self, setup: dict[str, Any]) -> None:
        import eaglecpp

        self.engine = eaglecpp.Engine.open(
            setup["target"], n_ctx=setup["n_ctx"], n_threads=setup["n_threads"], **setup["options"]
        )
        self.n_vocab = self.engine.n_vocab

    def rows(self, prefix: list[int], tokens: list[int], repeats: int) -> list[float]:
        raise SystemExit("only the worker 'rows' can time rows")

    def prompt(self, tokens: list[int]) -> float:
        self.engine.clear()
        done = self.engine.generate(tokens, max_tokens=1, temperature=0.0, ignore_eos=True)
        return float(done.timings.prompt_ms)


KINDS: dict[str, Callable[[dict[str, Any]], Timed]] = {"theirs": Theirs, "rows": OurRows, "engine": OurEngine}
IMPORTS = {"theirs": "llama_cpp", "rows": "eaglecpp.lowlevel", "engine": "eaglecpp.engine.engine"}


def memory() -> dict[str, int]:
    """Returns the memory of this process in bytes: resident, proportional share (PSS), and the anonymous and
    file-backed parts of PSS.
    """
    fields = {"Rss": "rss", "Pss": "pss", "Pss_Anon": "pss_anonymous", "Pss_File": "pss_file"}
    found = {}
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name in fields:
            found[fields[name]] = int(rest.split()[0]) * 1024
    return found


def some_tokens(n: int, n_vocab: int) -> list[int]:
    """Returns n different tokens of the vocabulary, without the control tokens at its beginning."""
    return [16 + i * 7919 % (n_vocab - 16) for i in range(n)]


def serve(setup: dict[str, Any]) -> None:
    importlib.import_module(IMPORTS[setup["kind"]])  # the module is imported before the clock starts
    before = memory()
    start = time.perf_counter()
    timed = KINDS[setup["kind"]](setup)
    print(json.dumps({"load_ms": 1000 * (time.perf_counter() - start)}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        result: Any
        if asked["do"] == "rows":
            prefix = some_tokens(asked["behind"], timed.n_vocab)
            tokens = some_tokens(asked["behind"] + asked["n"], timed.n_vocab)[asked["behind"] :]
            result = timed.rows(prefix, tokens, asked["repeats"])
        elif asked["do"] == "prompt":
            before_ms = 1000 * time.process_time()
            result = timed.prompt(some_tokens(asked["n"], timed.n_vocab))
            if asked.get("is_processor_time"):
                result = 1000 * time.process_time() - before_ms
        else:
            prompt_ms = timed.prompt(some_tokens(N_WARM, timed.n_vocab))
            result = {name: size - before[name] for name, size in memory().items()}
            result["prompt_ms"] = prompt_ms
        time.sleep(0.01)  # this worker's threads stop spinning before the other worker runs
        print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
