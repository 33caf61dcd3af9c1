# SPDX-License-Identifier: MIT
"""What latent attention costs a drafter, in the absorbed form (a cache of latents that all heads read) and in
the expanded one (a cache of every head's keys and values).

    python benchmarks/latent_attention.py --threads 2

The absorbed form is what eaglecpp runs. The expanded one is stood in for by a usual drafter whose attention
has the same numbers: 64 heads with keys and values of their own, 160 wide, are as many cached values and
products as Kimi's 64 keys of 192 and values of 128. Everything else is made narrow, and what is reported is
the time of a level of draft rows over a long text less that over a short one: attention alone. What the forms
do once per row is the same number of products in both (`kv_b_proj`, applied to the row or to its query and
result).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from common import facts, note, table, warn_if_busy, write_json

from eaglecpp.convert import convert_checkpoint
from eaglecpp.lowlevel import Drafter, EngineOptions
from helpers.random_drafter import DraftShape, LatentShape
from helpers.tiny import make_target

N_EMBD, N_HEADS = 64, 64
SHORT = 64
KIMI = LatentShape(q_rank=256, kv_rank=512, nope=128, rope=64, value=128)
FORMS = {
    "absorbed": DraftShape(n_heads=N_HEADS, latent=KIMI, n_draft_vocab=367),
    "expanded": DraftShape(n_heads=N_HEADS, n_kv_heads=N_HEADS, head_dim=160, n_draft_vocab=367),
}


def options(n_ctx: int, n_threads: int, flash_attn: str) -> EngineOptions:
    made = EngineOptions()
    made.n_ctx, made.n_threads, made.flash_attn, made.draft_device = n_ctx, n_threads, flash_attn, "cpu"
    return made


def filled(path: Path, n_rows: int, n_threads: int, flash_attn: str) -> tuple[Drafter, np.ndarray[Any, Any]]:
    """A drafter with `n_rows` committed rows, and the state of the last."""
    drafter = Drafter(str(path), options(n_rows + 256, n_threads, flash_attn))
    rng = np.random.default_rng(1)
    n_left = n_rows
    while n_left > 1:
        n = min(n_left - 1, 1024)
        drafter.append(rng.normal(size=(3, n, N_EMBD)).astype(np.float32), [1] * n)
        n_left -= n
    _, state = drafter.commit(rng.normal(size=(3, 1, N_EMBD)).astype(np.float32), [1])
    return drafter, state


def level_ms(drafter: Drafter, state: np.ndarray[Any, Any], n_rows: int, repeat: int) -> float:
    """Median time of one level of `n_rows` draft rows."""
    times = []
    for _ in range(repeat):
        drafter.truncate(drafter.n_rows)
        start = time.perf_counter()
        drafter.extend(np.repeat(state[None], n_rows, axis=0), [1] * n_rows, [-1] * n_rows, 1)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


@click.command()
@click.option(
    "--context", "contexts", type=int, multiple=True, default=(1024, 4096, 16384), show_default=True
)
@click.option("--rows", type=int, multiple=True, default=(1, 8), show_default=True, help="Rows of a level.")
@click.option("--form", "forms", type=click.Choice(list(FORMS)), multiple=True, default=tuple(FORMS))
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--repeat", type=int, default=5, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the results here.")
def main(
    contexts: tuple[int, ...],
    rows: tuple[int, ...],
    forms: tuple[str, ...],
    threads: int,
    repeat: int,
    out: Path | None,
) -> None:
    """Milliseconds of attention in a level of draft rows: absorbed and expanded, fused and explicit."""
    warn_if_busy()
    ways = [(form, fused) for form in forms for fused in ("fused", "explicit")]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        target = make_target(root / "target")
        for form in forms:
            shape = FORMS[form]
            checkpoint = shape.write(root / form)
            convert_checkpoint(checkpoint, target.gguf, root / f"{form}.gguf", "F16", aux_layers=shape.layers)
        for n_ctx in contexts:
            drafters = {
                (form, fused): [
                    filled(root / f"{form}.gguf", n, threads, "on" if fused == "fused" else "off")
                    for n in (SHORT, n_ctx)
                ]
                for form, fused in ways
            }
            for n_rows in rows:
                spent: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
                for _ in range(3):  # in turns, so that a machine that slows down slows all
                    for way, (short, long) in drafters.items():
                        base = level_ms(*short, n_rows, repeat)
                        spent[way].append(level_ms(*long, n_rows, repeat) - base)
                found = {" ".join(way): statistics.median(times) for way, times in spent.items()}
                results.append({"context": n_ctx, "rows": n_rows, "ms": found})
                note(f"{n_ctx} rows of text, level of {n_rows}: {found}")
    head = ["text", "rows of a level", *(f"{form}, {fused}" for form, fused in ways)]
    print(table(head, [[str(r["context"]), str(r["rows"]), *r["ms"].values()] for r in results]))
    sizes = {"absorbed": KIMI.kv_rank + KIMI.rope, "expanded": 2 * N_HEADS * 160}
    print(f"\nvalues in the cache per position: absorbed {sizes['absorbed']}, expanded {sizes['expanded']}")
    if out is not None:
        write_json(out, facts({}) | {"threads": threads, "results": results, "cached_values": sizes})


if __name__ == "__main__":
    main()
