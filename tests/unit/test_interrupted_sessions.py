# SPDX-License-Identifier: MIT
"""Tests that no slot is lost if a signal handler raises an exception, which may happen between any two
instructions.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.engine import engine as of_engine
from eaglecpp.engine import loading, native, session
from eaglecpp.errors import EngineBusyError
from helpers.models import Models

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
