# SPDX-License-Identifier: MIT
"""What this process trains with: the device, the number type, the threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator

import torch

from eaglecpp.errors import InvalidValueError

_MALLOPT = {
    -4: ("MALLOC_MMAP_MAX_", 0),
    -1: ("MALLOC_TRIM_THRESHOLD_", -1),
    -2: ("MALLOC_TOP_PAD_", 256 << 20),
}
"""glibc's numbers of settings, the variables that set them, and values with which freed blocks are kept."""
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


def choose_device(name: str) -> torch.device:
    """auto, cpu, cuda or mps.

    Raises InvalidValueError for one that is not there.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(n for n in ("cuda", "mps", "cpu") if there[n])
    if not there[name]:
        raise InvalidValueError(f"--device {name}: PyTorch {torch.__version__} has no such device here")
    return torch.device(name)


def compute_type(device: torch.device) -> torch.dtype:
    """bf16 where it is fast: GPUs, and CPUs with AMX or AVX512-BF16 (elsewhere a bf16 product is slower than
    an fp32 one).
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    if device.type == "mps":
        return torch.bfloat16
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def prepare_process() -> None:
    """Before the first matrix product: keeps oneDNN from AMX where the processor's flags promise it and the
    first instruction would end the process, as on some virtual machines. And tells glibc to keep what is
    freed: it returns large blocks to the kernel, and the pages of each new block then fault in again; with
    the tensors of a training step that costs up to half of the time. What the user set stays, and so do other
    allocators.
    """
    from eaglecpp.lowlevel import system_info

    other = any(name in os.environ.get("LD_PRELOAD", "") for name in _ALLOCATORS)
    if platform.libc_ver()[0] == "glibc" and not other:
        libc = ctypes.CDLL(None)
        for number, (variable, value) in _MALLOPT.items():
            if variable not in os.environ:
                libc.mallopt(number, value)
    amx = system_info()["amx"]
    if amx["claimed"] and not amx["works"]:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@contextlib.contextmanager
def computing(n_threads: int) -> Iterator[None]:
    """Computations of this process have so many threads, 0 = physical cores, and denormal numbers count as
    zero: they are slow and mean nothing here. Afterwards both are as they were, for what else the process
    does.
    """
    from eaglecpp.lowlevel import system_info

    if not n_threads:
        n_threads = int(os.environ.get("OMP_NUM_THREADS", "0")) or int(system_info()["n_cores"])
    n_before, flushed_before = torch.get_num_threads(), sys.float_info.min / 2 == 0.0
    torch.set_num_threads(n_threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed_before)
        torch.set_num_threads(n_before)
