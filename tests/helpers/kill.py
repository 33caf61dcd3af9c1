# SPDX-License-Identifier: MIT
"""Kills real commands (`kill -9`) at random moments and looks at what they leave.

Used by tests/e2e/test_kill.py with a few kills and by benchmarks/kill_store.py with many.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helpers.store_check import store_problems

__all__ = ["Scenario", "kill_at_random"]

COMMAND = str(Path(sys.executable).with_name("eaglecpp"))


@dataclass
class Scenario:
    """A command to kill, and what must hold after it died.

    prepare:  makes the moment before the command, again for every kill
    check:    problems it finds, beyond those of the store
    n_killed, n_finished: how the runs ended
    """

    name: str
    args: Sequence[str]
    prepare: Callable[[], None] = lambda: None
    check: Callable[[], list[str]] = list
    n_killed: int = 0
    n_finished: int = 0
    problems: list[str] = field(default_factory=list)


def kill_at_random(
    scenario: Scenario, n_kills: int, environment: Mapping[str, str], folder: Path, seed: int
) -> None:
    """Runs the scenario until it was killed `n_kills` times, at moments spread over its whole duration.

    The first run is left to its end, to learn how long it takes and that it works. Adds what it finds to the
    scenario.
    """
    rng = random.Random(seed)
    scenario.prepare()
    started = time.monotonic()
    code = _run(scenario.args, environment, folder, None)
    duration = time.monotonic() - started
    if code != 0:
        scenario.problems.append(f"{scenario.name}: exit code {code} without any kill")
        return
    while scenario.n_killed < n_kills and scenario.n_finished < 2 * n_kills:
        scenario.prepare()
        code = _run(scenario.args, environment, folder, rng.uniform(0, duration))
        if code == -signal.SIGKILL:
            scenario.n_killed += 1
        else:
            scenario.n_finished += 1
            scenario.problems += [f"{scenario.name}: exit code {code} after a kill"] if code else []
        found = [*store_problems(Path(environment["EAGLECPP_MODELS"])), *scenario.check()]
        scenario.problems += [
            f"{scenario.name}, run {scenario.n_killed + scenario.n_finished}: {p}" for p in found
        ]


def _run(args: Sequence[str], environment: Mapping[str, str], folder: Path, kill_after: float | None) -> int:
    """The exit code; -9 when it was killed."""
    child = subprocess.Popen(
        [COMMAND, *args],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return child.wait(kill_after)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
