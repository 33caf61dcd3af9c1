# SPDX-License-Identifier: MIT
"""Two processes that share each batch make the steps of one that has it all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import train_rank


def two_processes(out: Path, what: str) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out.mkdir()
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", train_rank.__file__, str(out), what],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors.decode()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return torch.load(out / "found.pt", weights_only=True)  # type: ignore[no-any-return]


# with a type a weight may round the other way
@pytest.mark.parametrize(("what", "error"), [("", 1e-5), ("dspark", 1e-5), ("Q8_0", 1e-3)])
def test_two_processes_train_as_one(tmp_path: Path, what: str, error: float) -> None:
    shared = two_processes(tmp_path / "two", what)
    (tmp_path / "one").mkdir()
    train_rank.run(tmp_path / "one", what)
    alone = torch.load(tmp_path / "one" / "found.pt", weights_only=True)
    assert len(alone["losses"]) == 5 and len(set(alone["losses"])) == 5
    assert shared["losses"] == pytest.approx(alone["losses"], abs=error)
    if what != "Q8_0":
        assert shared["lengths"] == pytest.approx(alone["lengths"], abs=1e-6)
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(shared["weights"][name], weight, rtol=0, atol=error)
    assert (tmp_path / "two" / "state" / "last.pt").exists()
