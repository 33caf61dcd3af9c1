# SPDX-License-Identifier: MIT
"""`Store`: one folder of models. `Stores`: our own store and, read-only, Ollama's.

Reading takes no lock: manifests are replaced atomically, so a reader sees either the old or the new manifest.
`transaction` writes to a store.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from eaglecpp.errors import EagleError, ModelNotFoundError
from eaglecpp.files import NotAFileError, read_limited
from eaglecpp.human import nearest
from eaglecpp.references import ModelName, canonical
from eaglecpp.store.content import known_digest, same_content
from eaglecpp.store.errors import DigestError, StoreError
from eaglecpp.store.layout import blob_path, default_root, find_manifest, manifests, ollama_roots
from eaglecpp.store.manifest import MAX_JSON, Layer, Manifest
from eaglecpp.store.model import StoredModel

_T = TypeVar("_T")
_log = logging.getLogger("eaglecpp.store")


@dataclass(frozen=True)
class Store:
    """A folder with `manifests` and `blobs`.

    own:       True for our writable store; any other store is Ollama's
    elsewhere: roots of other stores to search for missing blobs
    """

    root: Path
    own: bool = True
    elsewhere: tuple[Path, ...] = field(default=(), compare=False)

    def find(self, name: ModelName) -> StoredModel | None:
        """Returns the model with this name, ignoring case, or None. Raises StoreError for an invalid
        manifest.
        """
        path = find_manifest(self.root, name)
        if path is None:
            return None
        # The path on disk has the correct upper and lower case of the name.
        host, namespace, model, tag = path.parts[-4:]
        return self._load(canonical(ModelName(model, tag, namespace, host)), path)

    def models(self) -> list[StoredModel]:
        """Returns every model, newest first. Unreadable models are logged and skipped."""
        loaded = []
        for name, path in manifests(self.root):
            try:
                model = read_again(partial(self._load, name, path), _with_config)
            except (EagleError, OSError) as error:
                _log.warning("%s", error)
            else:
                loaded += [] if model is None else [model]
        return sorted(loaded, key=lambda model: model.modified, reverse=True)

    def blob(self, digest: str) -> Path | None:
        """Returns the file with this digest from this store or from a store in `elsewhere`, or None."""
        paths = (blob_path(root, digest) for root in (self.root, *self.elsewhere))
        return next((path for path in paths if path.is_file()), None)

    def _load(self, name: ModelName, path: Path) -> StoredModel | None:
        """Loads the model of a manifest. Returns None if another process has just removed the manifest."""

        def read_blob(digest: str) -> bytes:
            blob = self.blob(digest)
            if blob is None:
                raise StoreError(f"{path}: blob {digest} is missing")
            return read_limited(blob, MAX_JSON)

        # Only a registry can have made the manifest list in our store. So it is read in the same way as in
        # `pull`, without blobs.
        try:
            mtime = path.stat().st_mtime
            data = read_limited(path, MAX_JSON)
        except FileNotFoundError:
            if not path.is_symlink():
                return None
            raise StoreError(f"{path}: the manifest is a broken link") from None
        except NotAFileError as error:
            raise StoreError(str(error)) from None
        manifest = Manifest.from_bytes(data, str(path), None if self.own else read_blob)
        find_blob = partial(self._blob_of, name, mtime)
        owner = "" if self.own else "Ollama"
        return StoredModel(name, manifest, self.root, owner, find_blob, data, mtime)

    def _blob_of(self, name: ModelName, written: float, layer: Layer) -> Path:
        """Returns a layer's file after checking its size. If a blob is also a user's file and was modified
        after the manifest, the function also hashes the content, because the user may have changed the file
        in place.
        """
        again = f"pull or create {name} again" if self.own else f"pull it again: ollama pull {name}"
        path = self.blob(layer.digest)
        if path is None:
            raise StoreError(f"{name}: {layer.kind} blob {layer.digest} is missing in {self.root}; {again}")
        stat = path.stat()
        if stat.st_size != layer.size:
            sizes = f"expected {layer.size} bytes, found {stat.st_size}"
            raise StoreError(f"{name}: {layer.kind} blob {path}: {sizes}; {again}")
        if self.own and stat.st_nlink > 1 and stat.st_mtime >= written and known_digest(path) != layer.digest:
            raise DigestError(
                f"{name}: {path} was changed together with the file that it was made from; {again}"
            )
        return path


@dataclass(frozen=True)
class Stores:
    """Every store of this user.

    problems: a sentence for each of Ollama's folders that exists but is not readable
    """

    own: Store
    others: tuple[Store, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def open(cls, root: Path | None = None) -> Stores:
        """Opens our own store (at `root`, or at `layout.default_root`) and Ollama's stores on this machine.

        Opening writes nothing.
        """
        own = root or default_root()
        roots, problems = [], []
        for folder in ollama_roots():
            try:
                listed = [next(entry.iterdir(), None) for entry in folder.glob("manifests*")]
                if listed and os.path.realpath(folder) != os.path.realpath(own):
                    roots.append(folder)
            except PermissionError:
                how = "join their group (sudo usermod -aG ollama $USER) or set OLLAMA_MODELS"
                problems.append(f"You cannot read Ollama's models in {folder}: {how}")
            except OSError:
                continue
        others = tuple(Store(folder, own=False) for folder in roots)
        return cls(Store(own, elsewhere=tuple(roots)), others, tuple(problems))

    def find(self, name: ModelName) -> StoredModel | None:
        """Returns the model with this name: first from our store, then from Ollama's stores, then a packaged
        model. Returns None if there is no such model.
        """
        from eaglecpp.store.packaged import find_packaged, is_packaged

        for store in (self.own, *self.others):
            if (found := store.find(name)) is not None:
                return found
        return find_packaged(self.find) if is_packaged(name) else None

    def get(self, name: ModelName) -> StoredModel:
        """Like `find`, but raises ModelNotFoundError instead of returning None."""
        model = self.find(name)
        if model is None:
            hints = "".join(f". {problem}" for problem in self.problems)
            near = self.near(str(name))
            raise ModelNotFoundError(f"model '{name}' not found{near} (`eaglecpp list` shows all){hints}")
        return model

    def near(self, text: str, *, n_listed: int = 5) -> str:
        """Returns a hint for an error message: a question that suggests the stored model with the most
        similar name, or else the first names of stored models, or "" if there are no models.
        """
        names = [model.short_name for model in self.models()]
        suggestion = nearest(text.removesuffix(":latest"), names, cutoff=0.7)
        if suggestion:
            return f"; did you mean {suggestion}?"
        listed = names[:n_listed]
        return f"; stored here: {', '.join(listed)}{', ...' * (len(names) > n_listed)}" if listed else ""

    def original_of(self, file: Path) -> StoredModel | None:
        """Returns a model that has a drafter and whose target has the same content as this file. The model
        may have any name. Returns None if there is no such model.
        """
        size = [file.stat().st_size]
        for model in self.models():
            if model.manifest.of_kind("draft") and size == [x.size for x in model.manifest.of_kind("model")]:
                with contextlib.suppress(EagleError, OSError):  # a damaged model is skipped
                    if model.draft_file() and same_content(file, model.target_files()[0]):
                        return model
        return None

    def models(self) -> list[StoredModel]:
        """Returns our models, then Ollama's, then packaged models. Models of one store are ordered from
        newest to oldest. If several models have the same name, only the first is returned.
        """
        from eaglecpp.store.packaged import find_packaged

        models = [model for store in (self.own, *self.others) for model in store.models()]
        models += filter(None, [find_packaged(self.find)])
        by_name = {model.name.key: model for model in reversed(models)}
        return [model for model in models if by_name[model.name.key] is model]


def read_again(find: Callable[[], StoredModel | None], use: Callable[[StoredModel], _T]) -> _T | None:
    """Calls `use(find())`, which reads a model's files without a lock. If this fails and another process has
    replaced the model meanwhile, tries once more. Returns None if the model does not exist or no longer
    exists.
    """
    model = find()
    if model is None:
        return None
    try:
        return use(model)
    except (EagleError, OSError):
        again = find()
        if again is not None and again.data == model.data:
            raise
        return None if again is None else use(again)


def _with_config(model: StoredModel) -> StoredModel:
    _ = model.config
    return model
