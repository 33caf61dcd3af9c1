# SPDX-License-Identifier: MIT
"""What the process must be like for training to be fast: memory allocator, threads, number types.

glibc's allocator hands large blocks back to the kernel at every free, and each new one is then paged in anew;
with the tensors of a training step that costs up to half of the time. Its settings are read once at the start
of a process, so the process is replaced by itself with them set (`with_allocator`).
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence

import torch

__all__ = ["choose_device", "compute_type", "set_threads", "with_allocator"]

_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
_PRELOADED = ("jemalloc", "tcmalloc", "mimalloc")
_MARK = "EAGLECPP_TRAIN_ALLOCATOR"
"""Set in the replaced process, so that it happens once whatever becomes of the other variables."""


def with_allocator(command: Sequence[str]) -> None:
    """Replaces this process by `command` with the allocator set, where that helps and was not done: glibc,
    no other allocator preloaded, none of the settings given by the user. Returns otherwise.
    """
    done = _MARK in os.environ or any(name in os.environ for name in _ALLOCATOR)
    other = any(name in os.environ.get("LD_PRELOAD", "") for name in _PRELOADED)
    if done or other or platform.libc_ver()[0] != "glibc":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), {**os.environ, **_ALLOCATOR, _MARK: "1"})


def choose_device(name: str) -> torch.device:
    """auto, cpu, cuda or mps. Under torchrun each process gets the CUDA device of its local rank.

    Raises ValueError for one that is not there.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(n for n in ("cuda", "mps", "cpu") if there[n])
    if not there[name]:
        raise ValueError(f"--device {name}: PyTorch {torch.__version__} finds no such device here")
    if name == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return torch.device(name)


def compute_type(device: torch.device, name: str = "auto") -> torch.dtype:
    """bf16 where it is fast: GPUs, and CPUs with AMX or AVX512-BF16 (elsewhere a bf16 product is slower than
    an fp32 one). name: auto, bf16 or fp32.
    """
    if name != "auto":
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    if device.type == "mps":
        return torch.bfloat16
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def set_threads(n_threads: int) -> int:
    """Threads of this process's computations, 0 = physical cores (its share of them under torchrun);
    returns their number. Denormal numbers count as zero from here on: they are slow and mean nothing here.
    """
    from eaglecpp.lowlevel import system_info

    if not n_threads:
        n_cores = int(system_info()["n_cores"])
        n_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        n_threads = max(1, int(os.environ.get("OMP_NUM_THREADS", "0")) or n_cores // n_local)
    torch.set_num_threads(n_threads)
    torch.set_flush_denormal(True)
    return n_threads
