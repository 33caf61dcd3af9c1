# SPDX-License-Identifier: MIT
"""Measures llama.cpp's own target-only decoding in a process that does not load the extension, which would
replace ggml's kernels. The process runs this module as a file.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_N_PROMPT = 16
# Minimum share of the wall time that llama.cpp's threads must run. Undisturbed threads run all the time,
# because they spin while they wait for each other.
_OWN_SHARE = 0.8
_LIMIT_S = 300.0  # after this number of seconds, the process counts as hung


@dataclass(frozen=True)
class LlamaPlain:
    """Speed of llama.cpp in milliseconds per token. is_disturbed: True if other programs took processor time
    from llama.cpp's threads.
    """

    ms: float
    is_disturbed: bool = False


def llama_plain(target: Path, n_threads: int, *, repack: bool, seconds: float) -> LlamaPlain | None:
    """Measures llama.cpp's speed with its default options on the CPU. Returns None if that fails.

    repack: False turns off repacked weights, which crash on a CPU that claims AMX without supporting it.
    """
    setup = {"target": str(target), "n_threads": n_threads, "repack": repack, "seconds": seconds}
    try:
        command = [sys.executable, "-P", __file__, json.dumps(setup)]
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
        ms, share = map(float, done.stdout.split())
        return LlamaPlain(ms, share < _OWN_SHARE)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _measure(target: str, n_threads: int, repack: bool, seconds: float) -> tuple[float, float]:
    """Returns the milliseconds per token, and the share of the wall time during which the threads were
    running.
    """
    import llama_cpp

    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model_params.use_extra_bufts = repack
    model_params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(target.encode(), model_params)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = 512
    params.n_threads = params.n_threads_batch = n_threads
    context = llama_cpp.llama_init_from_model(model, params)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def decode(*tokens: int) -> float:
        # The variable keeps the array alive, because the batch points into the array.
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        batch = llama_cpp.llama_batch_get_one(array, len(tokens))
        started = time.perf_counter()
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit(1)
        # Reading the logits waits until the computation has finished.
        llama_cpp.llama_get_logits_ith(context, -1)
        return 1000 * (time.perf_counter() - started)

    decode(*(16 + i * 7919 % (n_vocab - 16) for i in range(_N_PROMPT)))
    ms: list[float] = []
    started, own = time.perf_counter(), time.process_time()
    while len(ms) < 8 or (time.perf_counter() < started + seconds and len(ms) < 400):
        ms.append(decode(16 + len(ms) * 104729 % (n_vocab - 16)))
    share = (time.process_time() - own) / (n_threads * (time.perf_counter() - started))
    # The first four times are left out, because they include building the graphs.
    return statistics.median(ms[4:]), share


if __name__ == "__main__":
    sys.stdout.write("{} {}".format(*_measure(**json.loads(sys.argv[1]))))
