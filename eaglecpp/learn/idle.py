# SPDX-License-Identifier: MIT
"""`Learner`: trains drafters on recorded conversations while a server is idle.

A training is a process `eaglecpp learn` with the lowest priority. Only one training runs at a time. The
process is suspended from the moment a request takes a model until the server is idle again. It is killed if a
model needs its memory, and the next training continues where it stopped. If the new drafter is better, the
model is unloaded, so that the next request loads it with the new drafter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from eaglecpp.learn.records import LEAST_TEXTS, Learning
from eaglecpp.threads import Threads

_log = logging.getLogger("eaglecpp.learn")
_LOOK_S = 1.0
_REST_S = 60.0  # seconds to pause after an internal error


@dataclass
class _Training:
    """A running training process. stock: the drafter that the training started from."""

    name: str
    stock: Path
    learning: Learning
    process: psutil.Popen
    before: dict[str, object] | None
    is_still: bool = False


def run_training() -> None:
    """Runs the command line in the training process, and ends this process when its server ends, even by
    SIGKILL.

    A running training process notices the end of its standard input. A suspended process cannot, but it has
    its own process group, and the kernel sends SIGHUP and SIGCONT to this group when the parent ends.
    """

    def end_with_server() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=end_with_server, daemon=True).start()
    runpy.run_module("eaglecpp", run_name="__main__", alter_sys=True)


class Learner:
    """Trains the drafters of a server's models.

    learning: yields name, target and drafter of the loaded models whose answers are recorded
    idle_for: returns the seconds since the last request ended
    unload:   unloads a model by name
    idle_s:   seconds without a request after which training starts or resumes
    files:    threads that read records
    """

    def __init__(
        self,
        learning: Callable[[], Iterable[tuple[str, Path, Path]]],
        idle_for: Callable[[], float],
        unload: Callable[[str], Awaitable[None]],
        idle_s: float,
        files: Threads,
    ) -> None:
        self._files = files
        self._models, self._idle_for, self._unload, self._idle_s = learning, idle_for, unload, idle_s
        self._known: dict[Path, Learning] = {}
        self._training: _Training | None = None
        self._failed: dict[str, int] = {}  # time of each model's last failure, in nanoseconds since 1970

    def stop_for_request(self) -> None:
        """Suspends the training at once. The server calls this whenever a request takes a model."""
        training = self._training
        if training is not None and not training.is_still:
            training.is_still = True
            with contextlib.suppress(psutil.Error):
                training.process.suspend()

    @property
    def n_bytes(self) -> int:
        """Returns the bytes of memory that the training process uses, also while it is suspended."""
        with contextlib.suppress(psutil.Error):
            if self._training is not None:
                return int(self._training.process.memory_info().rss)
        return 0

    async def end(self) -> None:
        """Kills the current training process. The next training resumes its work."""
        training, self._training = self._training, None
        if training is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                training.process.kill()
            await asyncio.to_thread(training.process.wait)
            training.process.stdin.close()

    async def run(self) -> None:
        """Runs the learner until its task is cancelled."""
        try:
            while True:
                await asyncio.sleep(min(_LOOK_S, self._idle_s))
                try:
                    await self._look()
                except Exception:
                    _log.exception("learning failed; trying again in %g s", _REST_S)
                    await asyncio.sleep(_REST_S)
        finally:
            await self.end()

    async def _look(self) -> None:
        if self._training is not None and self._training.process.poll() is not None:
            await self._ended(self._training)
        elif self._idle_for() < self._idle_s:
            return
        elif self._training is None:
            await self._find()
        elif self._training.is_still:
            self._training.is_still = False
            with contextlib.suppress(psutil.NoSuchProcess):
                self._training.process.resume()

    async def _find(self) -> None:
        """Starts training for the first model with enough new records."""
        for name, target, stock in [*self._models()]:
            # `Learning.of` reads the target's file, so it is called once per target.
            if target not in self._known:
                self._known[target] = await self._files.run(Learning.of, target)
            learning = self._known[target]
            if await self._files.run(learning.has_news, self._failed.get(name, 0)):
                if self._idle_for() >= self._idle_s:
                    self._begin(name, target, stock, learning)
                return

    def _begin(self, name: str, target: Path, stock: Path, learning: Learning) -> None:
        # With -P, Python does not import a package named eaglecpp from the working directory.
        learn = ["learn", str(target), "--draft", str(stock)]
        code = f"import {__name__} as idle; idle.run_training()"
        process = psutil.Popen(
            [sys.executable, "-P", "-c", code, *learn],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **({} if sys.platform == "win32" else {"process_group": 0}),
        )
        with contextlib.suppress(psutil.Error):
            process.nice(psutil.IDLE_PRIORITY_CLASS if sys.platform == "win32" else 19)
        _log.info("learning for %s begins", name, extra={"model": name})
        self._training = _Training(name, stock, learning, process, learning.facts(stock))

    async def _ended(self, training: _Training) -> None:
        self._training = None
        training.process.stdin.close()
        if training.process.returncode != 0:
            self._failed[training.name] = time.time_ns()
            _log.warning(
                "learning for %s failed. To see why, run `eaglecpp learn` with this model and its drafter. "
                "The server tries again after %d more answers",
                training.name, LEAST_TEXTS, extra={"model": training.name},
            )  # fmt: skip
            return
        is_new = training.learning.facts(training.stock) != training.before
        what = "a better drafter" if is_new else "no better drafter"
        _log.info("learning for %s gave %s", training.name, what, extra={"model": training.name})
        if is_new:
            with contextlib.suppress(Exception):
                await self._unload(training.name)
