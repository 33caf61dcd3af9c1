# SPDX-License-Identifier: MIT
"""Fifty `kill -9` at random moments of pull, create, rm and convert; the store is checked after each one.

    python benchmarks/kill_store.py [--kills 50] [--seed 1]

Uses a tiny pair, a local server that behaves like the Hub, and a store of its own; prints one JSON object and
exits with 1 when anything was wrong. Takes about a minute and a half on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.hub_server import HubServer
from helpers.kill import kill_at_random
from helpers.kill_scenarios import KillBench, content_bytes
from helpers.tiny import make_pair


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="kills in all, spread over the commands")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name, HubServer() as hub:
        folder = Path(name)
        bench = KillBench(folder, make_pair(folder / "pair"), hub, bytes_per_s=1_500_000)
        scenarios = bench.scenarios()
        for number, scenario in enumerate(scenarios):
            n_kills = options.kills // len(scenarios) + (number < options.kills % len(scenarios))
            kill_at_random(scenario, n_kills, bench.environment, folder, options.seed + number)
        problems = [problem for scenario in scenarios for problem in scenario.problems] + bench.tidied()
        downloads = content_bytes(hub, len(bench.served))
    result = {
        "kills": {scenario.name: scenario.n_killed for scenario in scenarios},
        "finished_before_the_kill": {scenario.name: scenario.n_finished for scenario in scenarios},
        "downloads": downloads,
        "problems": problems,
        "seed": options.seed,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(result, indent=2))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
