# SPDX-License-Identifier: MIT
"""Chooses the device, the number type and the threads of a training process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator

import torch

from eaglecpp.errors import InvalidValueError
from eaglecpp.lowlevel import system_info

_MALLOPT = {
    -4: ("MALLOC_MMAP_MAX_", 0),
    -1: ("MALLOC_TRIM_THRESHOLD_", -1),
    -2: ("MALLOC_TOP_PAD_", 256 << 20),
}
"""glibc's mallopt parameters, their environment variables, and values with which freed blocks are kept."""
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


def choose_device(name: str) -> torch.device:
    """Returns the torch device for "auto", "cpu", "cuda" or "mps".

    Raises InvalidValueError if it is not available.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(n for n in ("cuda", "mps", "cpu") if available[n])
    if not available[name]:
        raise InvalidValueError(f"--device {name}: PyTorch {torch.__version__} has no such device here")
    return torch.device(name)


def compute_type(device: torch.device) -> torch.dtype:
    """Returns the number type for products: bf16 on GPUs and on CPUs with AMX or AVX512-BF16, otherwise fp32,
    because on other CPUs a bf16 product is slower than an fp32 product.
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    if device.type == "mps":
        return torch.bfloat16
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def prepare_process() -> None:
    """Prepares the process before the first matrix product. Settings of the user, and allocators other than
    glibc's, are kept.

    Keeps oneDNN from using AMX if the processor's flags claim AMX but an AMX instruction would crash, as on
    some virtual machines. Makes glibc keep freed memory: by default it returns large blocks to the kernel,
    and page faults of new blocks cost up to half of the time of a training step.
    """
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
    """Inside the `with` block, uses this number of threads (0 = physical cores), and flushes denormals to
    zero, because denormals are slow. Restores both settings afterwards.
    """
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
