# SPDX-License-Identifier: MIT
"""Models by name: a store in Ollama's layout, downloads, and the table of known drafters.

    stores = Stores.open()                         # ours, and Ollama's read-only
    model = stores.get(ModelName.parse("llama3.2:3b"))
    model.target_files()[0]                        # the GGUF to load

Our store has Ollama's layout, because eaglecpp also reads Ollama's own store. So the same code reads both
stores, `cp` and `FROM` share blobs between the stores, and a model's digest is the registry's digest.
`huggingface_hub`'s cache would replace little of this code, and does not check contents (see
`remote.download`).

Importing this package is cheap. `create`, `pull` and the modules that they need are imported where they are
used.
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
