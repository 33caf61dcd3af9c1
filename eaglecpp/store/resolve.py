# SPDX-License-Identifier: MIT
"""A model reference to everything that running it needs, from what is on this machine.

    resolved = resolve_model("llama3.2:3b")        # path, stored name, Ollama's, the Hub's, "smollm2"
    resolved.target, resolved.draft, resolved.modelfile

Nothing is downloaded: a reference that is not here is ModelNotFoundError with the command that brings it.
`eaglecpp.opening.fetch` is the same for those who may download.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from eaglecpp.chat.message import Message
from eaglecpp.chat.template import ChatTemplate
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.modelfile.errors import Notice
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.parameters import ParameterValue
from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.references.reference import is_path_text, read_name
from eaglecpp.store.model import StoredModel
from eaglecpp.store.packaged import find_packaged
from eaglecpp.store.store import Stores
from eaglecpp.store.stored_modelfile import stored_modelfile, templates_of

__all__ = ["ResolvedModel", "model_name", "resolve_draft", "resolve_model", "resolve_name", "resolved"]


@dataclass(frozen=True)
class ResolvedModel:
    """What a reference stands for.

    kind:     "path", "store" (ours), "ollama", or "package" (of PyPI, see `packaged`)
    target:   the GGUF, of a split one the first part
    modelfile: parameters, system prompt, messages ...; None for a bare path
    stored_template: a chat template that Ollama chose; `modelfile.template` is only one that an author wrote
    """

    reference: str
    kind: Literal["path", "store", "ollama", "package"]
    target: Path
    draft: Path | None = None
    adapters: tuple[Path, ...] = ()
    projectors: tuple[Path, ...] = ()
    name: ModelName | None = None
    modelfile: Modelfile | None = None
    stored_template: str | None = None

    @property
    def template(self) -> str | None:
        """The chat template that the model's author wrote, if any."""
        return self.modelfile.template if self.modelfile is not None else None

    @property
    def template_choice(self) -> str:
        """The `chat_template` pragma: which template is used; "auto" unless the author says."""
        return self.modelfile.settings.chat_template if self.modelfile is not None else "auto"

    def chat_template(
        self, gguf: str, has_token: Callable[[str], bool], bos_text: str = "", eos_text: str = ""
    ) -> ChatTemplate:
        """The chat template, and why it is this one. gguf: what the target's file carries, "" for none;
        has_token: whether the vocabulary has one token of that text. Raises ValueError for a `chat_template`
        pragma that names what is not there.
        """
        return ChatTemplate.choose(
            modelfile=self.template,
            stored=self.stored_template,
            gguf=gguf,
            choice=self.template_choice,
            has_token=has_token,
            bos_text=bos_text,
            eos_text=eos_text,
        )

    @property
    def system(self) -> str | None:
        """The system prompt, if any."""
        return self.modelfile.system if self.modelfile is not None else None

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages that begin every conversation."""
        return self.modelfile.messages if self.modelfile is not None else ()

    @property
    def parameters(self) -> Mapping[str, ParameterValue]:
        """Parameters that are set, by Ollama's names."""
        return self.modelfile.parameters if self.modelfile is not None else {}

    @property
    def notices(self) -> Sequence[Notice]:
        """What the user should know."""
        return self.modelfile.notices if self.modelfile is not None else ()

    def engine_options(self) -> dict[str, Any]:
        """Arguments of `Engine.open`: fields of the option classes, and `strategy`. Empty for a bare path."""
        if self.modelfile is None:
            return {}
        options = {key.rpartition(".")[2]: value for key, value in self.modelfile.engine_options().items()}
        if self.adapters:
            options["lora"] = tuple((str(path), 1.0) for path in self.adapters)
        return options


def resolve_model(reference: str | os.PathLike[str], stores: Stores | None = None) -> ResolvedModel:
    """What `reference` stands for.

    Raises ModelNotFoundError, StoreError for a damaged store, UnsupportedError for what is not a GGUF.
    """
    text = os.fspath(reference)
    path = Path(text).expanduser()
    if path.is_file():
        return ResolvedModel(text, "path", path)
    return resolve_name(model_name(text), text, stores)


def resolve_name(name: ModelName, text: str = "", stores: Stores | None = None) -> ResolvedModel:
    """As `resolve_model`, for what is known to be a name: a file that is called so is not looked at.

    text: how it was asked for
    """
    text = text or str(name)
    stores = stores or Stores.open()
    model = stores.find(name)
    if model is not None:
        return resolved(model, text)
    packaged = find_packaged(name)
    if packaged is not None:
        target = packaged.target(stores)
        return ResolvedModel(text, "package", target, packaged.draft_file(), name=packaged.name)
    problems = "".join(f". {problem}" for problem in stores.problems)
    raise ModelNotFoundError(
        f"model {text!r} is not on this machine{stores.near(text)}; to get it: eaglecpp pull {text}{problems}"
    )


def resolve_draft(reference: str | os.PathLike[str], stores: Stores | None = None) -> Path:
    """The GGUF of a drafter that is on this machine: a path, a stored drafter, or a stored model's drafter.

    Raises ModelNotFoundError.
    """
    text = os.fspath(reference)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    name = model_name(text)
    model = (stores or Stores.open()).find(name)
    packaged = find_packaged(name) if model is None else None
    if packaged is not None and (own := packaged.draft_file()) is not None:
        return own
    file = None if model is None else model.draft_file()
    if file is None:
        why = "the stored model of that name has no drafter" if model is not None else "not on this machine"
        raise ModelNotFoundError(
            f"drafter {text!r}: {why}; give a drafter GGUF, or download one: eaglecpp pull TARGET --draft "
            "auto"
        )
    return file


def model_name(text: str) -> ModelName:
    """The name that a reference is, when it is not a path.

    Raises ModelNotFoundError, saying so, for a text that can only be meant as a path.
    """
    if is_path_text(text):
        raise ModelNotFoundError(f"model {text!r}: no such file")
    try:
        return read_name(text)
    except ModelNameError as error:
        raise ModelNotFoundError(f"model {text!r}: no such file, and not a model name: {error}") from None


def resolved(model: StoredModel, text: str = "") -> ResolvedModel:
    """What a stored model is made of; text: how it was asked for. Raises StoreError, UnsupportedError."""
    files = model.target_files()
    modelfile = stored_modelfile(model)
    template, stored_template = templates_of(model, modelfile)
    return ResolvedModel(
        reference=text or str(model.name),
        kind="store" if model.own else "package" if model.keeper == "pip" else "ollama",
        target=files[0],
        draft=model.draft_file(),
        adapters=model.files("adapter"),
        projectors=model.files("projector"),
        name=model.name,
        modelfile=replace(modelfile, template=template),
        stored_template=stored_template,
    )
