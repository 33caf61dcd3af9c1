# SPDX-License-Identifier: MIT
"""Several processes under `torchrun`: this process's rank, sums over all processes, and which one reports.

Gradients are reduced by PyTorch's DistributedDataParallel; this module has only what surrounds it. Without
torchrun everything works in one process and costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Ranks:
    """This process among `n` (torchrun's world size)."""

    rank: int = 0
    n: int = 1

    @property
    def first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as all processes train it together; itself for one process."""
        if self.n == 1:
            return model
        device = next(model.parameters()).device
        ids = [device.index or 0] if device.type == "cuda" else None
        with warnings.catch_warnings():  # torch 2.13 has a newer name for `broadcast_buffers`; 2.6 has not
            warnings.simplefilter("ignore", FutureWarning)
            # A group of its own, because DDP never lets go of its group: were it the one of `sum`, gloo's
            # threads would outlive `joined`, and one that is late to free a sum's Python tensor would do so
            # in an interpreter that is ending, which aborts the process.
            return DistributedDataParallel(
                model, device_ids=ids, process_group=dist.new_group(), broadcast_buffers=False
            )

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes, in each."""
        if self.n > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any process says so, in each."""
        return bool(self.sum(torch.tensor(float(flag), device=device)) > 0) if self.n > 1 else flag

    def agree(self, value: float, device: torch.device) -> float:
        """The first process's value, in each."""
        if self.n == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=device)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.n > 1:
            dist.barrier()


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The process group that torchrun announced in the environment (gloo, or NCCL on CUDA), left at the
    end.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Ranks()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        # gloo's threads free the tensors that they summed last, which takes the interpreter's lock. DDP's
        # group waits for these threads when it dies, and has the lock: it must not die while one is late.
        time.sleep(0.2)
        dist.destroy_process_group()
