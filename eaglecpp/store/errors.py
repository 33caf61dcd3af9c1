# SPDX-License-Identifier: MIT
"""Errors of stored models and downloads, and the progress reports of long operations.

`Status` has the fields of Ollama's progress objects, so that a server can pass it on unchanged. This module
prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eaglecpp.errors import EagleError


class StoreError(EagleError):
    """The store cannot be read or written, or its content is inconsistent."""


class DigestError(StoreError):
    """The SHA-256 of downloaded or stored content differs from the expected digest."""


class DownloadError(EagleError):
    """A server cannot be reached, refuses the request, or does not have the file."""


class HostRefusedError(DownloadError):
    """A server must not be contacted, because a request may not name this server, or because the server is in
    a network of this machine.
    """


class OfflineError(DownloadError):
    """Offline mode forbids a download that is needed, or no server has answered."""


@dataclass(frozen=True)
class Status:
    """One step of a long operation.

    status: in Ollama's words, such as "pulling manifest" or "success"
    digest: digest of the current blob, "" for a step without one
    file:   display name of that blob
    total, completed: bytes
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
    file: str = ""


Report = Callable[[Status], None]
"""Receives every step, on the working thread."""


def silent(status: Status) -> None:
    """A `Report` that ignores every step."""
