# SPDX-License-Identifier: MIT
"""Models by name: a store in Ollama's layout, downloads, and known drafters.

    stores = Stores.open()                         # ours, and Ollama's to read
    model = stores.get(ModelName.parse("llama3.2:3b"))
    model.target_files()[0]                        # the GGUF to load

Ours has Ollama's layout because Ollama's is read in place, anyway: one reader serves both, `cp` and `FROM`
share blobs between them, and a model's digest is the one that a registry knows. `huggingface_hub`'s cache
would save little of it, and checks no content (see `remote.download`).

Reading is light. `create`, `pull` and what they need are imported from their modules where they are used.
"""

from __future__ import annotations

from eaglecpp.store.errors import DigestError, DownloadError, OfflineError, Report, Status, StoreError
from eaglecpp.store.model import StoredModel
from eaglecpp.store.store import Store, Stores

__all__ = [
    "DigestError",
    "DownloadError",
    "OfflineError",
    "Report",
    "Status",
    "Store",
    "StoreError",
    "StoredModel",
    "Stores",
]
