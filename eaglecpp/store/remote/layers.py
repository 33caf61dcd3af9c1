# SPDX-License-Identifier: MIT
"""Gets one blob for a transaction from the nearest place: our store, Ollama's, a local cache, a server."""

from __future__ import annotations

import logging
from pathlib import Path

import requests

from eaglecpp.store.manifest import IMAGE, Layer
from eaglecpp.store.remote.download import Remote, fetch
from eaglecpp.store.transaction import Transaction

__all__ = ["fetch_layer"]

_log = logging.getLogger("eaglecpp.store")


def fetch_layer(
    transaction: Transaction,
    session: requests.Session,
    kind: str,
    remote: Remote,
    *,
    name: str = "",
    cached: Path | None = None,
) -> tuple[Layer, Path]:
    """A layer with the content of `remote`, and a file that holds it until `commit`.

    cached: a local copy that may be used instead, once its digest is checked
    Raises DownloadError, DigestError, StoreError.
    """
    layer = Layer(IMAGE + kind, remote.digest, remote.size, name=name)
    stored = transaction.sound_blob(layer)
    if stored is not None:
        return layer, transaction.add_shared(remote.digest, stored)
    if cached is not None:
        copy = transaction.add_file(kind, cached, name=name)
        if copy.digest == remote.digest:
            return copy, cached
        _log.warning("the content of %s does not match its name; downloading it instead", cached)
    path = fetch(session, transaction.root, remote, transaction.report, keep=transaction.keep)
    return transaction.add_download(kind, remote.digest, path, name=name), path
