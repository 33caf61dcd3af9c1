# SPDX-License-Identifier: MIT
"""`Learner`: trains drafters on what was kept of their users' conversations while nobody asks for anything.

The training is a process of the lowest priority, `eaglecpp learn`, which stands still from the moment a
request takes a model until the server is idle again. One drafter at a time. Where something better came of it
the model is unloaded, so that the next request loads it with the new drafter.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from eaglecpp.learning import Learning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from eaglecpp.server.loaded import LoadedModel

__all__ = ["Learner"]

_log = logging.getLogger("eaglecpp.server.learner")
_LOOK_S = 1.0


@dataclass
class _Training:
    """One under way. stock: the drafter that it began with."""

    name: str
    stock: Path
    learning: Learning
    process: psutil.Popen
    before: dict[str, object] | None
    is_still: bool = False


class Learner:
    """loaded: the models in memory; idle_for: seconds since the last request ended; unload: frees a model by
    its name; idle_s: seconds without a request after which learning begins or goes on.
    """

    def __init__(
        self,
        loaded: Callable[[], Iterable[LoadedModel]],
        idle_for: Callable[[], float],
        unload: Callable[[str], Awaitable[bool]],
        idle_s: float,
    ) -> None:
        self._loaded, self._idle_for, self._unload, self._idle_s = loaded, idle_for, unload, idle_s
        self._training: _Training | None = None
        self._is_possible = importlib.util.find_spec("torch") is not None
        self._told = False
        self._failed: set[str] = set()  # models whose training ended in an error: not tried again

    def stop_for_request(self) -> None:
        """Called whenever a model gets a user: the training stands still at once."""
        training = self._training
        if training is not None and not training.is_still:
            training.is_still = True
            with contextlib.suppress(psutil.NoSuchProcess):
                training.process.suspend()

    async def run(self) -> None:
        """Until it is cancelled, which ends a training; the next one goes on with it."""
        try:
            while True:
                await asyncio.sleep(min(_LOOK_S, self._idle_s))
                if self._training is not None and self._training.process.poll() is not None:
                    await self._ended(self._training)
                elif self._idle_for() >= self._idle_s:
                    self._go_on()
        finally:
            if self._training is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._training.process.kill()
                await asyncio.to_thread(self._training.process.wait)

    def _go_on(self) -> None:
        if self._training is not None:
            if self._training.is_still:
                self._training.is_still = False
                self._training.process.resume()
            return
        for model in self._loaded():
            learning = model.engine.engine.learning
            if learning is not None and model.name not in self._failed and learning.has_news():
                self._begin(model, learning)
                return

    def _begin(self, model: LoadedModel, learning: Learning) -> None:
        if not self._is_possible:
            if not self._told:
                _log.warning("conversations are kept, but learning needs PyTorch: pip install torch")
            self._told = True
            return
        found = model.source.found
        assert found.draft is not None
        # -P: not a package of that name in the folder where the server was started
        learn = ["learn", str(found.target), "--draft", str(found.draft)]
        quiet = subprocess.DEVNULL
        process = psutil.Popen(
            [sys.executable, "-P", "-m", "eaglecpp", *learn], stdin=quiet, stdout=quiet, stderr=quiet
        )
        with contextlib.suppress(psutil.Error):
            process.nice(psutil.IDLE_PRIORITY_CLASS if sys.platform == "win32" else 19)
        _log.info("learning for %s begins", model.name, extra={"model": model.name})
        self._training = _Training(model.name, found.draft, learning, process, learning.facts(found.draft))

    async def _ended(self, training: _Training) -> None:
        self._training = None
        if training.process.returncode != 0:
            self._failed.add(training.name)
            _log.warning(
                "learning for %s failed; `eaglecpp learn` with this model and its drafter says why",
                training.name, extra={"model": training.name},
            )  # fmt: skip
            return
        is_new = training.learning.facts(training.stock) != training.before
        what = "a better drafter" if is_new else "no better drafter"
        _log.info("learning for %s gave %s", training.name, what, extra={"model": training.name})
        if is_new:
            with contextlib.suppress(Exception):
                await self._unload(training.name)
