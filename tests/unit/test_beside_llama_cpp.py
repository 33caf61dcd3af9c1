# SPDX-License-Identifier: MIT
"""Tests llama_cpp and eaglecpp in one process. Neither library changes the other's results, whichever is
loaded first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.amx import spare_llama_cpp
from helpers.lora import write_lora
from helpers.script import run_script
from helpers.tiny import make_target

LORA_AFTER_LLAMA_CPP = """
import sys
import llama_cpp

target, adapter = sys.argv[1:]
theirs = llama_cpp.Llama(target, n_ctx=128, n_threads=1, verbose=False)
from eaglecpp import Engine

with Engine.open(target, n_ctx=128, n_threads=1, lora={adapter: 1.0}) as engine:
    assert engine.device_info["kernels"]
    print(engine.generate("xy zz", max_tokens=8, temperature=0.0, ignore_eos=True).tokens)
"""

LORA_ALONE = LORA_AFTER_LLAMA_CPP.replace("\ntheirs =", "\n# theirs =")

# The thread runs graphs of llama.cpp almost all the time. Meanwhile, the hook is installed in the middle of a
# graph, and both libraries load models.
GRAPHS_MEANWHILE = """
import sys, threading
import llama_cpp

target, = sys.argv[1:]
options = dict(n_ctx=128, n_threads=2, verbose=False, logits_all=True)

def logits(llama):
    llama.reset()
    llama.eval(list(range(1, 60)))
    return llama.scores[:59].copy()

llama = llama_cpp.Llama(target, **options)
alone = logits(llama)
found, stop = [], threading.Event()

def compute():
    while not stop.is_set():
        found.append(bool((logits(llama) == alone).all()))

thread = threading.Thread(target=compute)
thread.start()
from eaglecpp import Engine

texts, others = set(), []
for repack in ("auto", "off"):
    with Engine.open(target, n_ctx=128, n_threads=1, repack=repack) as engine:
        assert engine.device_info["kernels"]
        texts.add(tuple(engine.generate("xy zz", max_tokens=8, temperature=0.0, ignore_eos=True).tokens))
    others.append(bool((logits(llama_cpp.Llama(target, **options)) == alone).all()))
stop.set()
thread.join()
assert len(found) > 1 and all(found), (len(found), found.count(False))
assert all(others) and len(texts) == 1, (others, texts)
"""


def run(script: str, *arguments: Path) -> str:
    done = run_script(spare_llama_cpp() + script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_adapter_works_where_llama_cpp_loaded_a_model_first(tmp_path: Path) -> None:
    """Tests an adapter in a process in which llama_cpp has loaded a model first. The adapter must not be
    placed in the weights' buffer, which can only store packed matrices.
    """
    target, adapter = make_target(tmp_path, dtype="Q8_0").gguf, tmp_path / "adapter.gguf"
    write_lora(adapter, target, size=0.01)
    assert run(LORA_AFTER_LLAMA_CPP, target, adapter) == run(LORA_ALONE, target, adapter)


@pytest.mark.parametrize("dtype", ["F32", "Q8_0"])
def test_llama_cpps_graphs_compute_the_same_during_installation(dtype: str, tmp_path: Path) -> None:
    run(GRAPHS_MEANWHILE, make_target(tmp_path, dtype=dtype).gguf)
