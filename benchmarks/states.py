# SPDX-License-Identifier: MIT
"""What drafting costs and gains on a target whose recurrent state llama.cpp cannot take back.

    python benchmarks/states.py [--width 768] [--type Q4_0] [--threads N] [--json OUT]

A random `granitehybrid` (Mamba 2 and three layers of attention) of the given width with a drafter. First,
what a copy of its state costs by each of llama.cpp's means, beside a plain step. Then the speed of chains
against plain decoding, in turns, where drafts are accepted at random as often as the column says, and of
`auto`, which has to find out.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
from common import arguments, facts, median, note, table, warn_if_busy, write_json

import eaglecpp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from architectures.run import quantised

from helpers.by_lot import accepted_by_lot
from helpers.tiny import TargetSpec, prompt_ids
from helpers.tiny_arch import ArchPair, make_forgetful_hybrid

RATES = (0.0, 0.3, 0.5, 0.7, 0.9)
STRATEGIES = ("chain:1", "chain:2", "chain:3", "chain:5", "auto")
N_PROMPT, N_TOKENS, N_TURNS, N_COPIES, N_STATE = 128, 64, 2, 20, 128


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--type", default="Q4_0")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory() as scratch:
        folder, n = Path(scratch), options.width
        spec = TargetSpec(
            arch="granitehybrid", n_layers=12, n_embd=n, n_heads=n // 64, n_kv_heads=n // 64, head_dim=64,
            n_ff=n * 11 // 4,
        )  # fmt: skip
        pair = make_forgetful_hybrid(folder, spec, N_STATE)
        pair = ArchPair(quantised(pair.target, options.type, folder), pair.draft)
        copies = copy_costs(pair, options.threads)
        print(table(("means", "bytes", "ms", "plain steps"), copies), end="\n\n")
        speeds = [speed_row(pair, rate, options.threads) for rate in RATES]
    print(table(("accepted at each depth", *STRATEGIES), speeds))
    if options.json:
        write_json(options.json, {"copies": copies, "speeds": speeds, **facts({})})


def copy_costs(pair: ArchPair, n_threads: int) -> list[tuple[str, ...]]:
    """Name, bytes, milliseconds for taking a copy and going back to it, and that in plain steps."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.kv_unified = 1024, 2, True
    if n_threads:
        params.n_threads = params.n_threads_batch = n_threads
    handle = llama_cpp.llama_model_load_from_file(bytes(pair.target), llama_cpp.llama_model_default_params())
    context = llama_cpp.llama_init_from_model(handle, params)
    memory = llama_cpp.llama_get_memory(context)
    ids = (ctypes.c_int32 * N_PROMPT)(*prompt_ids(N_PROMPT))
    llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, N_PROMPT))
    one = (ctypes.c_int32 * 1)(5)
    step_ms = timed(lambda: llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(one, 1)))
    rows = []
    for name, flags in (
        ("llama_state_seq_get/set_data_ext, whole", llama_cpp.LLAMA_STATE_SEQ_FLAGS_NONE),
        ("the same, PARTIAL_ONLY", llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY),
    ):
        size = llama_cpp.llama_state_seq_get_size_ext(context, 0, flags)
        buffer = (ctypes.c_uint8 * size)()

        def copied(buffer: Any = buffer, size: int = size, flags: int = flags) -> None:
            llama_cpp.llama_state_seq_get_data_ext(context, buffer, size, 0, flags)
            llama_cpp.llama_state_seq_set_data_ext(context, buffer, size, 0, flags)

        rows.append((name, f"{size:,}", timed(copied)))

    def shared() -> None:
        llama_cpp.llama_memory_seq_rm(memory, 1, -1, -1)
        llama_cpp.llama_memory_seq_cp(memory, 0, 1, -1, -1)
        llama_cpp.llama_memory_seq_rm(memory, 0, -1, -1)
        llama_cpp.llama_memory_seq_cp(memory, 1, 0, -1, -1)

    rows.append(("llama_memory_seq_cp to a second id", "0", timed(shared)))
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(handle)
    return [(name, size, f"{ms:.3f}", f"{ms / step_ms:.3f}") for name, size, ms in rows]


def timed(act: Callable[[], Any]) -> float:
    """Median milliseconds."""
    found = []
    for _ in range(N_COPIES):
        start = time.perf_counter()
        act()
        found.append(1e3 * (time.perf_counter() - start))
    return median(found)


def speed_row(pair: ArchPair, rate: float, n_threads: int) -> tuple[str, ...]:
    """Speed of each strategy over plain decoding, at one acceptance."""
    note(f"accepted {rate}")
    more: dict[str, Any] = {"n_threads": n_threads} if n_threads else {}
    options: dict[str, Any] = {"max_tokens": N_TOKENS, "temperature": 0.0, "ignore_eos": True}
    ms: dict[str, list[float]] = {name: [] for name in ("off", *STRATEGIES)}
    with eaglecpp.Engine.open(
        pair.target, draft=pair.draft, n_ctx=1024, planner_cache=False, text_drafts="off", exact="off", **more
    ) as engine:
        for turn in range(N_TURNS + 1):
            for name, found in ms.items():
                engine.clear()
                with accepted_by_lot([] if name == "off" else [rate] * 10):
                    done = engine.generate(prompt_ids(N_PROMPT), strategy=name, seed=turn, **options)
                if turn > 0:  # the first warms up
                    found.append(done.timings.predicted_ms / len(done.tokens))
    plain = median(ms["off"])
    return (f"{rate:.0%}", *(f"{plain / median(ms[name]):.2f}" for name in STRATEGIES))


if __name__ == "__main__":
    main()
