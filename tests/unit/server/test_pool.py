# SPDX-License-Identifier: MIT
"""What holds the models, without HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eaglecpp.server.config import ServerConfig
from eaglecpp.server.models import Server


@pytest.mark.parametrize("n_turns", range(4))
def test_it_closes_although_a_use_ends_at_that_moment(n_turns: int) -> None:
    """A cancelled wait whose event came at the same time has to end all the same."""

    async def run() -> None:
        pool = Server(ServerConfig(), {}).pool
        engine = SimpleNamespace(close=lambda grace_s: asyncio.sleep(0))
        idle = SimpleNamespace(n_users=0, seconds_left=1000.0, model=SimpleNamespace(engine=engine))
        pool.slots["idle"] = cast(Any, idle)
        pool._wake_sweeper()
        for _ in range(3):
            await asyncio.sleep(0)  # the sweeper waits now
        pool._wake_sweeper()
        for _ in range(n_turns):  # of the loop, until the wait is over
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(pool.close())
        done, _ = await asyncio.wait([closing], timeout=10)
        closing.cancel()
        assert done, "it waits for what was cancelled"

    asyncio.run(run())
