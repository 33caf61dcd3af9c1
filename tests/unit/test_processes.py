# SPDX-License-Identifier: MIT
"""Tests the engine after a fork, when memory runs out, and next to llama_cpp in one process: neither library
changes the other's results, whichever is loaded first. No slot is lost if a signal handler raises an
exception, which may happen between any two instructions.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.engine import engine as of_engine
from eaglecpp.engine import loading, native, session
from eaglecpp.errors import EngineBusyError
from helpers.amx import spare_llama_cpp
from helpers.lora import write_lora
from helpers.models import Models
from helpers.script import run_script
from helpers.tiny import make_target

FORK = """
import os, signal, sys, threading
from eaglecpp import Engine
from eaglecpp.errors import UnsupportedError

target, draft = sys.argv[1:]
options = {"n_ctx": 128, "n_threads": 2, "exact": "off", "planner_cache": False}

def said(engine):
    return engine.generate("xy zz", max_tokens=4, temperature=0.0).tokens

def opened():
    with Engine.open(target, **options) as other:
        said(other)

def outcome(call):
    try:
        call()
    except UnsupportedError as error:
        return "refused" if "forked" in str(error) and "spawn" in str(error) else str(error)
    return "done"

def in_child(*calls):
    pid = os.fork()
    if pid == 0:
        signal.alarm(500)
        found = {outcome(call) for call in calls}
        os._exit({"done": 0, "refused": 1}[found.pop()] if len(found) == 1 else 2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

plain = Engine.open(target, **options)
# nothing has been computed, so the child creates its own threads, as servers need that load before they fork
assert in_child(lambda: said(plain), opened) == 0
# worker threads belong to the computing thread, but the child only has the forking one
thread = threading.Thread(target=said, args=(plain,))
thread.start()
thread.join()
assert in_child(lambda: said(plain)) == 0

engine = Engine.open(target, draft, **options)
before = said(engine)
calls = (lambda: said(engine), lambda: next(engine.stream("xy", max_tokens=4)), engine.clear, opened)
assert in_child(*calls) == 1
engine.clear()
assert said(engine) == before
"""

# This program forks while other threads run native code. The child process does not have these threads.
FORK_BESIDE = """
import os, signal, sys, threading, time
from eaglecpp import Engine

target, = sys.argv[1:]
engine = Engine.open(target, n_ctx=128, n_threads=1)

def tokenizes():
    while True:
        engine.tokenize("ab cd " * 100_000)

for _ in range(3):
    threading.Thread(target=tokenizes, daemon=True).start()
time.sleep(0.2)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    sys.exit(0)  # through atexit
assert os.waitpid(pid, 0)[1] == 0
"""

# The address space of this program runs out while a context is opened. Memory may run out in the same way on
# a small machine.
MEMORY = """
import resource, sys
from pathlib import Path
from eaglecpp import Engine
from eaglecpp.errors import OutOfMemoryError

target, = sys.argv[1:]
Engine.open(target, n_ctx=128, n_threads=1).close()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
try:
    Engine.open(target, n_ctx=400_000, n_threads=1)
except OutOfMemoryError as error:
    print(error)
"""


def run(script: str, *arguments: Path) -> str:
    if "import llama_cpp" in script:
        script = spare_llama_cpp() + script
    done = run_script(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_open_stream_ends_with_the_interpreter(models: Models) -> None:
    script = "stream = eaglecpp.Llama(sys.argv[1])('ab', max_tokens=99, stream=True)\nnext(stream)"
    assert run_script(f"import eaglecpp, sys\n{script}", models.target).stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_gets_an_error_instead_of_a_hang(models: Models) -> None:
    assert run(FORK, models.target, models.draft) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_forked_from_busy_threads_ends(models: Models) -> None:
    assert run(FORK_BESIDE, models.target) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
def test_a_context_too_large_for_the_process_is_a_lack_of_memory(models: Models) -> None:
    assert "no room for a context of 400" in run(MEMORY, models.target)


# Next to llama_cpp


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


# Interrupted sessions


FILES = {module.__file__ for module in (of_engine, native, session)}


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Interrupts `call` before instruction number `at` in eaglecpp's files. Returns False if `call` ends
    earlier.
    """
    left = at

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES or frame.f_code.co_name == "__del__":
            return None  # Python ignores exceptions in __del__
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    # Garbage collection is off, because the __del__ of another test's object could run code in eaglecpp's
    # files.
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return False


def test_a_slot_comes_back_wherever_its_opening_was_interrupted(models: Models) -> None:
    with Engine.open(models.target, n_ctx=64, n_threads=1) as engine:
        n = 1
        while interrupted(engine.session, n):
            engine.session().close()
            n += 1
        assert n > 50


def test_a_slot_comes_back_wherever_its_closing_was_interrupted(models: Models) -> None:
    with Engine.open(models.target, n_ctx=64, n_threads=1) as engine:
        n = 1
        while interrupted((one := engine.session()).close, n):
            one.close()
            engine.session().close()
            n += 1
        assert n > 20


def test_a_dropped_session_returns_its_slot(models: Models) -> None:
    with Engine.open(models.target, n_ctx=64, n_threads=1) as engine:
        for _ in range(3):
            stream = engine.session().stream("ab", max_tokens=2)
            with pytest.raises(Exception, match="conversations of this engine are open"):
                engine.session()
            assert len(stream.finish().tokens) == 2
            del stream


def test_a_call_inside_another_leaves_the_engine_locked(models: Models) -> None:
    """Tests a call inside another call: the garbage collector may end a stream while a call runs. The engine
    must stay locked for other threads until the outer call ends.
    """
    refused = list[bool]()

    def other() -> None:
        try:
            engine.generate("a", max_tokens=1)
        except EngineBusyError:
            refused.append(True)

    with Engine.open(models.target) as engine:
        with engine._native.exclusive():
            stream = engine.stream("hello", max_tokens=4)
            next(stream)
            del stream
            gc.collect()
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert refused == [True]
        assert engine.generate("a", max_tokens=1).tokens


@pytest.mark.parametrize("phase", ["load", "measure_exact_rows"])
def test_ctrl_c_ends_an_opening(models: Models, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """Tests that Ctrl+C ends the opening of a model at once. In a former version, Ctrl+C took effect only
    after loading and measuring, which take minutes for a large model.
    """
    begun = list[str](["load"])
    measure = loading.measure
    monkeypatch.setattr(loading, "measure", lambda *on: begun.append("measure_exact_rows") or measure(*on))

    def check() -> None:
        if begun[-1] == phase:
            signal.raise_signal(signal.SIGINT)

    for module in (native, loading):
        monkeypatch.setattr(module, "check_wanted", check)
    with pytest.raises(KeyboardInterrupt):
        Engine.open(models.target, models.draft, planner_cache=False)
    monkeypatch.undo()
    with Engine.open(models.target, models.draft) as engine:
        assert engine.generate("hello", max_tokens=2).text
