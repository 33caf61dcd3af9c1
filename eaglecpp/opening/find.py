# SPDX-License-Identifier: MIT
"""Finds the files of a reference on this machine. This module never uses the network, but `eaglecpp pull` and
`fetch` do.

find_target("llama3.2:3b")        # a path, a stored name, Ollama's, the Hub's, "smollm2"
find_here("llama3.2:3b").draft    # with its drafter
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eaglecpp.chat.template import ChatTemplate
from eaglecpp.data_dir import data_dir, expanded
from eaglecpp.errors import EagleError, ModelNotFoundError
from eaglecpp.files import exists
from eaglecpp.learn.records import Learning
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.syntax import Command
from eaglecpp.options import HEAD, TEXT, Strategy
from eaglecpp.references import ModelName, first_part, is_hub_text, is_path_text, model_name, part_paths
from eaglecpp.store.model import StoredModel
from eaglecpp.store.packaged import how_to_get, is_packaged
from eaglecpp.store.store import Stores, read_again

if TYPE_CHECKING:
    from eaglecpp.store.facts import Facts


_STORES = {"path": "a file", "store": "stored", "ollama": "Ollama's store", "package": "a package"}


@dataclass(frozen=True)
class ModelFiles:
    """The files and the Modelfile settings of a model.

    kind:     "path", "store" (ours), "ollama", or "package" (of PyPI, see `packaged`)
    target:   the GGUF; for a split GGUF, the first part
    modelfile: the model's template (only if the Modelfile's author wrote the template), system prompt and
        other settings; for a file, only FROM
    draft:    the drafter's file or None; `find_target` sets the model's own drafter, `with_draft` the chosen
        drafter
    adapters: path and scale of each adapter; an adapter with scale 0 is not used
    name:     name of the model, None for a path
    title:    the name under which a server serves a file
    stored_template: chat template that Ollama chose for the model
    requested_template: template that overrides all others: its text, or a name for `chat_template`
    draft_origin: source of the drafter, "" without a drafter
    drafts_text: True if drafts from the text itself were requested, instead of a drafter
    names_draft: True if the drafter was requested by name, False if the drafter came with the model
    notices:  notices from the search for the files
    offer:    advice on a drafter for a model without one
    """

    kind: Literal["path", "store", "ollama", "package"]
    target: Path
    modelfile: Modelfile
    draft: Path | None = None
    adapters: tuple[tuple[str, float], ...] = ()
    projectors: tuple[Path, ...] = ()
    name: ModelName | None = None
    title: str = ""
    stored_template: str | None = None
    requested_template: str = ""
    draft_origin: str = ""
    drafts_text: bool = False
    names_draft: bool = False
    notices: tuple[str, ...] = ()
    offer: str = ""

    @property
    def reference(self) -> str:
        """A reference that finds the model again: its name, or the path of the target."""
        return str(self.name or self.target)

    @property
    def label(self) -> str:
        """A short name for the model."""
        return self.title or (self.target.stem if self.name is None else self.reference)

    @property
    def n_weight_bytes(self) -> int:
        """Bytes of all loaded files: target in all its parts, drafter, adapters, projector."""
        others = (*(Path(path) for path, _ in self.adapters), *self.projectors)
        files = (*part_paths(self.target), *others, *([] if self.draft is None else [self.draft]))
        return sum(path.stat().st_size for path in files if path.is_file())

    @property
    def target_origin(self) -> str:
        """The origin of the target, in words."""
        return _STORES[self.kind] if self.name is None else f"{_STORES[self.kind]}: {self.name}"

    def using(self, draft: Path | None = None, origin: str = "", **more: Any) -> ModelFiles:
        """Returns the same model with this drafter, or with no drafter for None. more: further fields to
        replace.
        """
        return replace(self, draft=draft, draft_origin=origin, **more)

    def chat_template(self, **of_the_file: Any) -> ChatTemplate:
        """Returns the chat template in use, with the reason. of_the_file: `gguf`, `has_token`, `bos_text` and
        `eos_text` of `ChatTemplate.choose`. Raises ValueError for a `chat_template` pragma with an unknown
        template.
        """
        asked = self.requested_template if "{" in self.requested_template else None
        return ChatTemplate.choose(
            asked=asked,
            modelfile=self.modelfile.template,
            stored=self.stored_template,
            choice="asked" if asked else self.requested_template or self.modelfile.settings.chat_template,
            **of_the_file,
        )


def find_here(
    reference: str | os.PathLike[str],
    draft: str | os.PathLike[str] | None = None,
    *,
    wants_draft: bool = True,
) -> ModelFiles:
    """Returns the files of a model and of its drafter, which is the model's own unless `draft` names another
    drafter.

    wants_draft: False if drafting is off, so that no drafter is needed
    Raises `ModelNotFoundError` if the model or the drafter is not on this machine.
    """
    model = find_target(reference)
    if draft == "auto" and wants_draft and model.draft is None:
        how = f"eaglecpp pull {model.reference} --draft auto"
        raise ModelNotFoundError(f"drafter 'auto': this machine has none for this model; to get one: {how}")
    return with_draft(model, draft)


def with_draft(
    model: ModelFiles, draft: str | os.PathLike[str] | None = None, stores: Stores | None = None
) -> ModelFiles:
    """Returns a model with a drafter on this machine. draft: None and "auto" stand for the drafter that comes
    with the model, if any. Raises the errors of `find_drafter`.
    """
    if Strategy.is_off(draft):
        return model.using()
    if draft == TEXT:
        return model.using(drafts_text=True)
    if draft == HEAD:  # the target's file contains the prediction head
        return model.using(model.target, "its own multi-token prediction head", names_draft=True)
    if draft is not None and draft != "auto":
        return model.using(find_drafter(draft, stores), "asked for", names_draft=True)
    origin = f"comes with {model.reference}"
    return model if model.draft is None else model.using(model.draft, origin, names_draft=draft is not None)


def with_learned(model: ModelFiles, *, learns: bool) -> ModelFiles:
    """Returns the model with the drafter that was trained on this machine, instead of the original drafter. A
    drafter that the user requested as a file is kept, unless learning is on.
    """
    if model.draft is None or not (learns or model.draft_origin.startswith(("comes with", "auto"))):
        return model
    learnt = Learning.of(model.target).drafter(model.draft) if (data_dir() / "learning").is_dir() else None
    origin = f"trained on this machine; originally: {model.draft_origin}"
    return model if learnt is None else model.using(learnt, origin)


def find_target(reference: str | os.PathLike[str], stores: Stores | None = None) -> ModelFiles:
    """Returns the model of a path or a name.

    Raises ModelNotFoundError, StoreError for a damaged store, UnsupportedError for a model that is not a
    GGUF.
    """
    path = find_path(reference, "target")
    if path is not None:
        return ModelFiles("path", path, Modelfile(from_=(Command("model", str(path)),)))
    text = os.fspath(reference)
    return find_name(model_name(text), text, stores)


def find_name(name: ModelName, text: str = "", stores: Stores | None = None) -> ModelFiles:
    """Returns the model of a name, as `find_target` does. A file with this name is ignored. text: the user's
    spelling of the name, for error messages
    """
    text = text or str(name)
    stores = stores or Stores.open()
    files = read_again(partial(stores.find, name), resolved)
    if files is not None:
        return files
    how = how_to_get() if is_packaged(name) else f"eaglecpp pull {text}"
    problems = "".join(f". {problem}" for problem in stores.problems)
    raise ModelNotFoundError(
        f"model {text!r} is not on this machine{stores.near(text)} (to get it: {how}){problems}"
    )


def find_drafter(reference: str | os.PathLike[str], stores: Stores | None = None) -> Path:
    """Returns the GGUF of a drafter. reference: a path, a stored drafter, or a stored model. A stored model
    with a drafter stands for its drafter. A stored model without a drafter is used as the drafter itself, as
    a small model. Raises ModelNotFoundError with advice.
    """
    text = os.fspath(reference)
    path = find_path(reference, "drafter")
    if path is not None:
        return path
    name, stores = model_name(text), stores or Stores.open()
    file = read_again(partial(stores.find, name), lambda model: model.draft_file() or model.target_files()[0])
    if file is None:
        how = "pass a GGUF file, or download a drafter: eaglecpp pull TARGET --draft auto"
        raise ModelNotFoundError(f"drafter {text!r}: not on this machine; {how}")
    return file


def resolved(model: StoredModel) -> ModelFiles:
    """Returns the files of a stored model. Raises StoreError, UnsupportedError."""
    files = model.target_files()
    modelfile = model.modelfile()
    is_ollamas = not model.own or bool(model.template_origin)  # True if Ollama chose the template
    return ModelFiles(
        kind="store" if model.own else "package" if model.owner == "pip" else "ollama",
        target=files[0],
        modelfile=replace(modelfile, template=None) if is_ollamas else modelfile,
        draft=model.draft_file() or (files[0] if modelfile.drafts_head else None),
        adapters=tuple((str(path), 1.0) for path in model.files("adapter")),
        projectors=model.files("projector"),
        name=model.name,
        stored_template=modelfile.template if is_ollamas else None,
    )


def template_in_use(model: StoredModel, facts: Facts | None) -> ChatTemplate | None:
    """Returns the chat template that `eaglecpp run` would use; None for a drafter that is stored without a
    target.
    """
    return None if facts is None else template_of(resolved(model), facts)


def template_of(files: ModelFiles, facts: Facts) -> ChatTemplate:
    """Returns the chat template of a model that is not opened. facts: the target's facts"""
    tokens = set(facts.tokens)
    gguf = facts.file.text("tokenizer.chat_template", "")
    return files.chat_template(gguf=gguf, has_token=lambda text: text.encode() in tokens)


def find_path(reference: str | os.PathLike[str], what: str = "model") -> Path | None:
    """Returns the file at a path (for a split file its first part); None if the reference may be a name.

    Raises `ModelNotFoundError` for a text that can only be a path but is not a file.
    """
    text = os.fspath(reference)
    if not text:
        return None
    path = expanded(text)
    if exists(path):
        if path.is_file():
            return first_part(path.absolute())
        if not path.is_dir():
            raise ModelNotFoundError(f"{what} {text!r} is not a regular file; give the path of a GGUF file")
        if path.parent == Path() and _is_stored(text):
            return None
        raise ModelNotFoundError(f"{what} {text!r} is a directory; {_directory_hint(path)}")
    in_a_folder = path.parent != Path() and exists(path.parent) and path.parent.is_dir()
    in_a_folder = in_a_folder and not is_hub_text(text)
    if (path.suffix == ".gguf" and is_path_text(text)) or in_a_folder:
        near = _files_in(path.parent)
        hint = f"GGUF files next to it: {near}" if near else "check the path"
        raise ModelNotFoundError(f"{what} {text!r}: no such file; {hint}")
    return None


def _is_stored(text: str) -> bool:
    """Returns whether a text, which is the name of a folder, is also the name of a stored model."""
    try:
        return bool(find_name(model_name(text)))
    except EagleError:
        return False


def _directory_hint(path: Path) -> str:
    if found := _files_in(path):
        return f"give one of its GGUF files: {found}"
    if (path / "config.json").is_file():
        return "convert it to GGUF (llama.cpp's convert_hf_to_gguf.py; a drafter: `eaglecpp convert`)"
    return "give the path of a GGUF file"


def _files_in(folder: Path) -> str:
    return ", ".join(sorted(entry.name for entry in folder.glob("*.gguf"))[:5])
