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

from eaglecpp.store.errors import DigestError as DigestError
from eaglecpp.store.errors import DownloadError as DownloadError
from eaglecpp.store.errors import OfflineError as OfflineError
from eaglecpp.store.errors import Status as Status
from eaglecpp.store.errors import StoreError as StoreError
from eaglecpp.store.model import StoredModel as StoredModel
from eaglecpp.store.store import Store as Store
from eaglecpp.store.store import Stores as Stores
