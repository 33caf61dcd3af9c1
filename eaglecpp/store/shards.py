# SPDX-License-Identifier: MIT
"""Split GGUF files in a store: a folder in which blobs carry the names of the parts.

llama.cpp finds the other parts of a split file by its name (`x-00001-of-00003.gguf`), which blobs do not
have. So the parts are linked under their names into `views/<digest of the first part>/`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from eaglecpp.files import link
from eaglecpp.references.names import ModelName
from eaglecpp.references.reference import in_order
from eaglecpp.store.errors import StoreError
from eaglecpp.store.layout import blob_path, child
from eaglecpp.store.manifest import Layer

__all__ = ["VIEWS", "split_view"]

VIEWS = "views"


def split_view(
    root: Path, name: ModelName, layers: Sequence[Layer], find_blob: Callable[[Layer], Path]
) -> tuple[Path, ...]:
    """Paths at which llama.cpp can open the parts, first part first.

    Raises StoreError when the layers are not the parts of one file, or the links cannot be made.
    """
    by_name = {layer.name: layer for layer in layers}
    try:
        names = in_order(by_name)
    except ValueError:
        found = ", ".join(layer.name or layer.digest[:19] for layer in layers)
        raise StoreError(f"{name}: {len(layers)} model layers that are not a split GGUF: {found}") from None
    first = blob_path(root, by_name[names[0]].digest).name
    folder = child(root / VIEWS, first.removeprefix("sha256-"))
    paths = tuple(child(folder, part) for part in names)
    for part, path in zip(names, paths, strict=True):
        _link(find_blob(by_name[part]), path, name)
    return paths


def _link(blob: Path, path: Path, name: ModelName) -> None:
    try:
        if path.exists() and path.samefile(blob):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        link(blob, temporary)
        temporary.replace(path)
        temporary.unlink(missing_ok=True)  # renaming over a link to the same file leaves both names
    except OSError as error:
        raise StoreError(
            f"{name}: split GGUF: cannot link {path}: {error.strerror}; llama.cpp needs the parts under "
            "their names, so the store must be writable once"
        ) from error
