# SPDX-License-Identifier: MIT
"""Turns the reference of a drafter checkpoint into files on this machine, for `eaglecpp.convert`, which never
uses the network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.references.names import ModelNameError
from eaglecpp.references.reference import FileSearchError, read_reference
from eaglecpp.store.errors import Report, silent


@dataclass(frozen=True)
class LocalFiles:
    """path: a file or folder; hub_id: OWNER/NAME[@REVISION] of the repository it is from, None for none."""

    path: Path
    hub_id: str | None = None


@contextmanager
def local_checkpoint(text: str, report: Report = silent) -> Iterator[LocalFiles]:
    """A checkpoint's files, as long as the block lasts. Raises ModelNotFoundError, DownloadError."""
    try:
        reference = read_reference(text)
    except (FileSearchError, OSError, ModelNameError) as error:
        raise ModelNotFoundError(f"checkpoint {text!r}: {error}") from None
    if reference.kind != "hub":
        if not reference.paths:
            hint = f"; for a repository on the Hub write hf.co/{text}" if text.count("/") == 1 else ""
            raise ModelNotFoundError(f"checkpoint {text!r}: no such file or folder{hint}")
        yield LocalFiles(reference.path)
        return
    from eaglecpp.store import Stores
    from eaglecpp.store.remote import hub

    repository = hub.find_repository(reference.repository, reference.revision)
    hub_id = reference.repository + (f"@{reference.revision}" if reference.revision else "")
    with tempfile.TemporaryDirectory(prefix="eaglecpp-") as folder:
        root = Stores.open().own.root
        yield LocalFiles(hub.fetch_checkpoint(root, repository, "", Path(folder), report), hub_id)
