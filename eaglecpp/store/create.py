# SPDX-License-Identifier: MIT
"""`create`: a Modelfile to a stored model.

    created = create_model(stores, ModelName.parse("mine"), Modelfile.load("Modelfile"), Path("."))

Weights that are files stay where they are and are shared (see `files.share`); weights of a stored model are
the same blobs. The drafter is checked against the target before anything is stored, and refused with the
reason. Rules of inheritance are Ollama's (`Modelfile.over`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglecpp.chat.template import ChatTemplate
from eaglecpp.errors import GgufError, MismatchError, ModelNotFoundError, UnsupportedError
from eaglecpp.modelfile.errors import Notice
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.parameters import ParameterValue
from eaglecpp.modelfile.resolve import Plan, resolve
from eaglecpp.options import HEAD
from eaglecpp.references.names import ModelName, canonical
from eaglecpp.references.reference import Reference, all_parts
from eaglecpp.store.errors import Report, Status, silent
from eaglecpp.store.facts import Facts, read_facts
from eaglecpp.store.fit import check_adapter, check_fit
from eaglecpp.store.manifest import PRAGMAS, Layer
from eaglecpp.store.model import StoredModel
from eaglecpp.store.remote.drafter import draft_config
from eaglecpp.store.remote.find_draft import find_draft
from eaglecpp.store.store import Stores
from eaglecpp.store.stored_modelfile import stored_modelfile
from eaglecpp.store.transaction import Transaction

__all__ = ["Created", "create_model"]

_INHERITED = ("renderer", "parser", "requires", "capabilities", "generation_defaults")
_OWN_DRAFT_PRAGMAS = ("draft", "draft_type")


@dataclass(frozen=True)
class Created:
    """A model that was made. notices: what its author should know."""

    model: StoredModel
    notices: tuple[Notice, ...] = ()


def create_model(
    stores: Stores,
    name: ModelName,
    modelfile: Modelfile,
    directory: Path,
    *,
    quantize: str = "",
    draft_type: str = "",
    use_draft: bool = True,
    fetch: bool = False,
    report: Report = silent,
) -> Created:
    """Makes (or replaces) the model `name`; relative paths of the Modelfile are below `directory`.

    quantize:   type to bring an unquantised target to, "" to leave it
    draft_type: type of a drafter that has to be converted, "" for the pragma's or the default
    use_draft:  False leaves the drafter out, whatever the Modelfile says
    fetch:      pull a FROM that is not stored; False refuses it
    Raises ModelfileError, ModelNotFoundError, MismatchError, UnsupportedError, StoreError, ConvertError,
    DownloadError, TemplateError, OSError.
    """
    if not use_draft:
        modelfile = replace(modelfile, draft=(), settings=replace(modelfile.settings, draft=None))
    plan = resolve(modelfile, directory)
    base = _base(stores, plan.target, fetch, report)
    with Transaction(stores, report) as transaction:
        job = _Job(stores, name, modelfile, plan, base, directory, transaction, report)
        return job.run(quantize, draft_type, use_draft)


def _base(stores: Stores, reference: Reference, fetch: bool, report: Report) -> StoredModel | None:
    """The stored model that FROM names; None when it names files."""
    if reference.name is None:
        return None
    model = stores.look_up(reference.name)
    if model is None and fetch:
        from eaglecpp.store.remote.pull import pull  # slow to load

        model = pull(reference.name, report=report, stores=stores).model
    model = model or stores.get(reference.name)
    model.check_runnable()
    return model


@dataclass
class _Job:
    stores: Stores
    name: ModelName
    modelfile: Modelfile
    plan: Plan
    base: StoredModel | None
    directory: Path
    transaction: Transaction
    report: Report

    def run(self, quantize: str, draft_type: str, use_draft: bool) -> Created:
        whole = self.modelfile
        if self.base is not None:
            whole = whole.over(stored_modelfile(self.base))
        if whole.template:
            ChatTemplate.choose(modelfile=whole.template).check()
        self.report(Status("gathering model components"))
        layers, files = self._target()
        facts = read_facts(files)
        if facts.is_drafter:
            raise UnsupportedError(
                f"FROM {files[0]}: this is a drafter ({facts.architecture}); name it in DRAFT"
            )
        if quantize:
            layers, files = self._quantized(files, facts, quantize)
            facts = read_facts(files)
        for adapter in self.plan.adapters:
            check_adapter(adapter, facts)
        layers += self._files("adapter", self.plan.adapters) or self._inherited("adapter")
        layers += self._inherited("projector") + self._files("projector", self.plan.projectors)
        draft = self._draft(files, facts, draft_type or whole.settings.draft_type) if use_draft else None
        drafts_head = use_draft and self._drafts_head()
        if drafts_head and not facts.has_head:
            raise MismatchError(
                f"DRAFT {HEAD}: {files[0]} has no head for further tokens (MTP) that can draft "
                f"(architecture '{facts.architecture}'); docs/which-drafter.md says which do"
            )
        config = self._config(whole, facts)
        if draft is not None:
            layers.append(draft[0])
            config["draft"] = draft_config(draft[1])
        layers += self._texts(whole, drafts_head)
        model = self.transaction.commit(canonical(self.name), layers, config)
        self.report(Status("success"))
        return Created(model, (*self.modelfile.notices, *self.plan.notices))

    def _target(self) -> tuple[list[Layer], tuple[Path, ...]]:
        """The target's layers, and files to read its head from."""
        if self.base is not None:
            return self._inherited("model"), self.base.target_files()
        files = self._given_files()
        names = [file.name for file in files] if len(files) > 1 else [""]
        layers = [
            self.transaction.add_file("model", file, name=name)
            for file, name in zip(files, names, strict=True)
        ]
        return layers, files

    def _given_files(self) -> tuple[Path, ...]:
        target = self.plan.target
        if target.kind == "digest":
            blob = self.stores.own.blob(target.text)
            if blob is None:
                raise ModelNotFoundError(f"FROM {target.text}: no blob with this digest is stored")
            return (blob,)
        if len(target.paths) > 1:
            return target.paths
        parts = tuple(target.path.with_name(name) for name in all_parts(target.path.name))
        missing = [part.name for part in parts if not part.is_file()]
        if missing and len(parts) > 1:
            raise ModelNotFoundError(
                f"FROM {target.path}: a part of a split GGUF; missing: {', '.join(missing)}"
            )
        return parts if len(parts) > 1 else (target.path,)

    def _quantized(
        self, files: Sequence[Path], facts: Facts, type: str
    ) -> tuple[list[Layer], tuple[Path, ...]]:
        from eaglecpp.store.quantize import quantize_target

        if len(files) > 1:
            raise UnsupportedError(
                f"{files[0]}: a split GGUF cannot be quantised; merge it first (llama-gguf-split --merge)"
            )
        out = self.transaction.directory / "quantized.gguf"
        quantize_target(files[0], facts, type, out, self.report)
        copy = (
            self.transaction.directory / "target.gguf"
        )  # add_output moves the file, its head is still needed
        copy.hardlink_to(out)
        return [self.transaction.add_output("model", out)], (copy,)

    def _draft(self, files: Sequence[Path], facts: Facts, type: str) -> tuple[Layer, Facts] | None:
        """The drafter's layer: the Modelfile's, else the base's."""
        if self.plan.draft is not None:
            with _way_out():
                found = find_draft(
                    self.stores, self.plan.draft, self.directory, files, facts, type=type, report=self.report
                )
                return found.add_to(self.transaction, facts)
        if self.plan.drafts_text or self.plan.drafts_head:
            return None
        layers = self.base.manifest.of_kind("draft") if self.base is not None else ()
        if self.base is None or not layers:
            return None
        base, layer = self.base, layers[-1]
        with _way_out():
            drafter = check_fit(base.find_blob(layer), facts)
        return self.transaction.add_layer(base, layer, origin=str(base.name)), drafter

    def _inherited(self, kind: str) -> list[Layer]:
        if self.base is None:
            return []
        base = self.base
        layers = base.manifest.of_kind(kind)
        return [self.transaction.add_layer(base, layer, origin=str(base.name)) for layer in layers]

    def _files(self, kind: str, files: Sequence[Path]) -> list[Layer]:
        return [self.transaction.add_file(kind, file) for file in files]

    def _drafts_head(self) -> bool:
        """Whether the target's own head drafts: the Modelfile's word, else the base's."""
        if self.plan.draft is not None or self.plan.drafts_text or self.base is None:
            return self.plan.drafts_head
        return self.plan.drafts_head or stored_modelfile(self.base).drafts_head

    def _texts(self, whole: Modelfile, drafts_head: bool) -> list[Layer]:
        """Layers of everything that is text, in Ollama's order."""
        add = self.transaction.add_bytes
        layers = [self._template(whole.template)] if whole.template else []
        if whole.system:
            layers.append(add("system", whole.system.encode()))
        layers += [add("license", text.encode()) for text in whole.license]
        if whole.parameters:
            values = {name: _plain(value) for name, value in sorted(whole.parameters.items())}
            layers.append(self.transaction.add_own("params", _json(values)))
        if whole.messages:
            messages = [{"role": turn.role, "content": turn.content} for turn in whole.messages]
            layers.append(add("messages", _json(messages)))
        pragmas = [[p.name, p.args] for p in whole.pragmas if p.name not in _OWN_DRAFT_PRAGMAS]
        if self.plan.drafts_text:
            pragmas.append(["text_drafts", "on"])
        if drafts_head:
            pragmas.append(["draft", HEAD])
        if pragmas:
            layers.append(self.transaction.add_own(PRAGMAS, _json(pragmas)))
        return layers

    def _template(self, text: str) -> Layer:
        """A template of Ollama's own choosing is marked, because the one in the GGUF takes precedence."""
        base = self.base
        layer = self.transaction.add_bytes("template", text.encode())
        if self.modelfile.template or base is None:
            return layer
        return replace(layer, origin=base.template_origin or ("" if base.own else str(base.name)))

    def _config(self, whole: Modelfile, facts: Facts) -> dict[str, Any]:
        inherited = self.base.config.values if self.base is not None else {}
        config = {**facts.config(), **{key: inherited[key] for key in _INHERITED if key in inherited}}
        for key in ("renderer", "parser", "requires"):
            value = getattr(whole, key)
            if value:
                config[key] = value
        return {**config, "architecture": "amd64", "os": "linux"}


@contextmanager
def _way_out() -> Iterator[None]:
    """Adds to the refusal of a drafter that the model can be had without it."""
    from eaglecpp.convert import errors

    hint = "`create --no-draft` makes the model without it"
    try:
        yield
    except (MismatchError, errors.TargetError) as error:
        raise MismatchError(f"{error}. {hint}") from None
    except (errors.ConvertError, GgufError, UnsupportedError) as error:
        raise type(error)(f"{error}. {hint}") from None


def _plain(value: ParameterValue) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
