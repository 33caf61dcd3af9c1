# SPDX-License-Identifier: MIT
"""llama.cpp's own plain decoding, in a process that loads nothing of ours: our kernels are inside ggml's
backend wherever the extension is. Run as a file, this is that process.
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
_OWN_SHARE = 0.8  # of the time of its threads; llama.cpp's do not sleep while they wait for each other
_LIMIT_S = 300.0  # a process that hangs is no measurement


@dataclass(frozen=True)
class LlamaPlain:
    """Milliseconds per token. is_disturbed: its threads did not get the processor all the time."""

    ms: float
    is_disturbed: bool = False


def llama_plain(target: Path, n_threads: int, *, repack: bool, seconds: float) -> LlamaPlain | None:
    """On the CPU, of llama.cpp with its default options; None if it could not be measured.
    repack: False where llama.cpp's repacked weights end the process (AMX that is claimed and does not work).
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
    """Milliseconds per token, and the share of its threads' time that they ran."""
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
        array = (llama_cpp.llama_token * len(tokens))(*tokens)  # the batch points into it
        batch = llama_cpp.llama_batch_get_one(array, len(tokens))
        started = time.perf_counter()
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit(1)
        llama_cpp.llama_get_logits_ith(context, -1)  # which waits for them
        return 1000 * (time.perf_counter() - started)

    decode(*(16 + i * 7919 % (n_vocab - 16) for i in range(_N_PROMPT)))
    ms: list[float] = []
    started, own = time.perf_counter(), time.process_time()
    while len(ms) < 8 or (time.perf_counter() < started + seconds and len(ms) < 400):
        ms.append(decode(16 + len(ms) * 104729 % (n_vocab - 16)))
    share = (time.process_time() - own) / (n_threads * (time.perf_counter() - started))
    return statistics.median(ms[4:]), share  # the first build graphs


if __name__ == "__main__":
    sys.stdout.write("{} {}".format(*_measure(**json.loads(sys.argv[1]))))
