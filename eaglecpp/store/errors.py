# SPDX-License-Identifier: MIT
"""What can go wrong with stored models and downloads, and how an operation reports its progress.

`Status` has the fields of Ollama's progress objects, so that a server can pass it on unchanged. Nothing here
prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eaglecpp.errors import EagleError


class StoreError(EagleError):
    """The store cannot be read or written, or holds something that contradicts itself."""


class DigestError(StoreError):
    """Content whose SHA-256 is not the one that names it."""


class DownloadError(EagleError):
    """A server cannot be reached, refuses, or does not have what was asked for."""


class HostRefusedError(DownloadError):
    """A server that must not be asked: one that a request may not name, or in a network of this machine."""


class OfflineError(DownloadError):
    """A download was needed in offline mode, or no server answered at all."""


@dataclass(frozen=True)
class Status:
    """One step of a long operation.

    status: in Ollama's words, such as "pulling manifest" or "success"
    digest: of the blob in work, "" for a step that is about none
    file:   what a person calls that blob
    total, completed: bytes
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
    file: str = ""


Report = Callable[[Status], None]
"""Hears of every step; called from the thread that works."""


def silent(status: Status) -> None:
    """The `Report` of someone who does not listen."""
