# SPDX-License-Identifier: MIT
"""Turns the references of a drafter checkpoint and of its target into files on this machine, for
`eaglecpp.convert`, which never uses the network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.opening.find import find_target
from eaglecpp.references.names import ModelNameError
from eaglecpp.references.reference import FileSearchError, Reference, read_reference
from eaglecpp.store.errors import Report, silent

if TYPE_CHECKING:
    from eaglecpp.store.remote.hub import HubFile, Repository

__all__ = ["LocalFiles", "local_checkpoint", "local_target"]


@dataclass(frozen=True)
class LocalFiles:
    """path: a file or folder; hub_id: OWNER/NAME[@REVISION] of the repository it is from, None for none."""

    path: Path
    hub_id: str | None = None


@contextmanager
def local_checkpoint(text: str, report: Report = silent) -> Iterator[LocalFiles]:
    """A checkpoint's files, as long as the block lasts. Raises ModelNotFoundError, DownloadError."""
    from eaglecpp.store.remote.checkpoint import checkpoint_files

    reference = _read(text, "checkpoint")
    if reference.kind == "hub":
        with _fetched(reference, checkpoint_files, report) as found:
            yield found
        return
    if not reference.paths:
        raise ModelNotFoundError(f"checkpoint {text!r}: no such file or folder{_hub_hint(text)}")
    yield LocalFiles(Path(text).expanduser())


@contextmanager
def local_target(text: str, report: Report = silent) -> Iterator[LocalFiles]:
    """A target's GGUF, or its config and tokenizer, as long as the block lasts. Raises as above."""
    from eaglecpp.store.remote.checkpoint import target_files

    reference = _read(text, "target")
    if reference.kind == "hub":
        with _fetched(reference, target_files, report) as found:
            yield found
    elif reference.paths:
        yield LocalFiles(Path(text).expanduser())
    else:
        try:
            path = find_target(text).target
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"{error}{_hub_hint(text)}") from None
        yield LocalFiles(path)


@contextmanager
def _fetched(
    reference: Reference, choose: Callable[[Repository], Sequence[HubFile]], report: Report
) -> Iterator[LocalFiles]:
    from eaglecpp.store import Stores
    from eaglecpp.store.remote.checkpoint import fetch_folder, find_repository
    from eaglecpp.store.remote.download import new_session

    repository = find_repository(reference.repository, reference.revision)
    hub_id = reference.repository + (f"@{reference.revision}" if reference.revision else "")
    with new_session() as session, tempfile.TemporaryDirectory(prefix="eaglecpp-") as folder:
        root = Stores.open().own.root
        yield LocalFiles(
            fetch_folder(session, root, repository, choose(repository), Path(folder), report), hub_id
        )


def _read(text: str, what: str) -> Reference:
    try:
        return read_reference(text)
    except (FileSearchError, OSError, ModelNameError) as error:
        raise ModelNotFoundError(f"{what} {text!r}: {error}") from None


def _hub_hint(text: str) -> str:
    return f"; for a repository on the Hub write hf.co/{text}" if text.count("/") == 1 else ""
