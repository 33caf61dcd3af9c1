# SPDX-License-Identifier: MIT
"""What holds the models, without HTTP."""

from __future__ import annotations

import asyncio

import pytest

from eaglecpp.server.config import ServerConfig
from eaglecpp.server.state import Server


@pytest.mark.parametrize("n_turns", range(4))
def test_it_closes_although_a_use_ends_at_that_moment(n_turns: int) -> None:
    """A cancelled wait whose event came at the same time has to end all the same."""

    async def run() -> None:
        pool = Server(ServerConfig(), {}).pool
        pool._wake_sweeper()
        for _ in range(3):
            await asyncio.sleep(0)  # the sweeper waits now
        pool._wake_sweeper()
        for _ in range(n_turns):  # of the loop, until the wait is over
            await asyncio.sleep(0)
        await asyncio.wait_for(pool.close(), 5)

    asyncio.run(run())
