# SPDX-License-Identifier: MIT
"""kill -9 at random moments of pull, create, rm and convert: the store stays sound, downloads go on.

A few kills each; benchmarks/kill_store.py does fifty. tests/unit/store/test_every_kill.py dies at every file
operation instead of at random.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.hub_server import HubServer
from helpers.kill import COMMAND, kill_at_random
from helpers.kill_scenarios import NAME, KillBench
from helpers.store_check import orphans, store_problems
from helpers.tiny import make_pair

N_KILLS = 2


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillBench]:
    folder = tmp_path_factory.mktemp("kill")
    with HubServer() as hub:
        yield KillBench(folder, make_pair(folder / "pair"), hub, bytes_per_s=4_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5), ids=["pull", "pull-again", "create", "rm", "convert"])
def test_a_killed_command_leaves_a_sound_store(bench: KillBench, number: int) -> None:
    scenario = bench.scenarios()[number]
    kill_at_random(scenario, N_KILLS, bench.environment, bench.folder, seed=number)
    assert scenario.problems == []
    assert bench.tidied() == []


@pytest.mark.slow
def test_a_pull_killed_half_way_goes_on_where_it_was(bench: KillBench) -> None:
    bench.forget_all()
    bench.hub.log.clear()
    bench.hub.faults.bytes_per_s = 1_000_000
    size = len(bench.served)
    child = subprocess.Popen(
        [COMMAND, "pull", NAME], cwd=bench.folder, env={**os.environ, **bench.environment}
    )
    partial: list[Path] = []
    while not partial or partial[0].stat().st_size < size // 2:
        partial = list(bench.root.glob("blobs/*-partial"))
        assert child.poll() is None
    child.kill()
    child.wait()
    had = partial[0].stat().st_size
    bench.hub.faults.bytes_per_s = 0
    assert bench.run("pull", NAME).returncode == 0
    assert [request.range for request in bench.hub.content_requests()] == ["", f"bytes={had}-"]
    assert store_problems(bench.root) == []


@pytest.mark.slow
def test_processes_at_once_share_one_store(bench: KillBench) -> None:
    bench.forget_all()
    assert bench.run("create", "last", "-f", "Modelfile").returncode == 0
    bench.hub.log.clear()
    bench.hub.faults.bytes_per_s = 4_000_000
    commands = [("pull", NAME), ("pull", NAME), ("create", "a", "-f", "Modelfile"), ("rm", "last")]
    children = [
        subprocess.Popen(
            [COMMAND, *command],
            cwd=bench.folder,
            env={**os.environ, **bench.environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    ended = [(child.communicate()[1], child.returncode) for child in children]
    assert [code for _, code in ended] == [0, 0, 0, 0], ended
    assert len(bench.hub.content_requests()) == 1, "the second pull waited for the first"
    assert store_problems(bench.root) == []
    assert orphans(bench.root) == []
