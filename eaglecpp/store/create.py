# SPDX-License-Identifier: MIT
"""`create`: turns a Modelfile into a stored model.

    created = create_model(stores, ModelName.parse("mine"), Modelfile.load("Modelfile"), Path("."))

Weight files stay where they are and are linked (see `Transaction.add_file`). If FROM names a stored model,
the new model shares its blobs. Before anything is stored, `create` checks that the drafter fits the target. A
mismatch is an error. Inheritance follows Ollama's rules (`Modelfile.over`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from eaglecpp.chat.template import ChatTemplate
from eaglecpp.errors import GgufError, MismatchError, TemplateError, UnsupportedError
from eaglecpp.human import nearest
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.resolve import Resolved
from eaglecpp.modelfile.syntax import Command, Notice
from eaglecpp.options import HEAD, TEXT
from eaglecpp.references import ModelName, all_parts, canonical
from eaglecpp.store.errors import Report, Status, silent
from eaglecpp.store.facts import Facts, quantize_target, read_facts
from eaglecpp.store.manifest import PRAGMAS, Layer
from eaglecpp.store.model import StoredModel
from eaglecpp.store.remote.pull import add_draft, draft_config, find_draft, pull
from eaglecpp.store.store import Stores, read_again
from eaglecpp.store.transaction import Transaction

_FIELDS = (  # names of the fields in the values that a Go template receives
    "Messages System Prompt Response Suffix Tools Think ThinkLevel IsThinkSet Role Content Thinking Images "
    "ToolCalls ToolName ToolCallID ID Index Function Name Arguments Description Parameters Type Properties "
    "Required Items Enum AnyOf Defs"
)


def create_model(
    stores: Stores,
    name: ModelName,
    modelfile: Modelfile,
    directory: Path,
    *,
    quantize: str = "",
    draft_type: str = "",
    use_draft: bool = True,
    report: Report = silent,
) -> StoredModel:
    """Creates or replaces the model `name`. Relative paths in the Modelfile are below `directory`.

    quantize:   type for an unquantised target, "" to keep its type
    draft_type: type for a drafter checkpoint that must be converted, "" for the default
    use_draft:  False omits the drafter, even if the Modelfile names a drafter
    Raises ModelfileError, ModelNotFoundError, MismatchError, UnsupportedError, StoreError, ConvertError,
    DownloadError, OSError.
    """
    if not use_draft:
        pragmas = tuple(pragma for pragma in modelfile.pragmas if pragma.name != "draft")
        modelfile = replace(modelfile, draft=(), pragmas=pragmas)
    named = Resolved(modelfile, directory)

    def make(base: StoredModel | None) -> StoredModel:
        if base is not None:
            base.check_runnable()
        with Transaction(stores, report) as transaction:
            job = _Job(transaction, named, base, draft_type, use_draft)
            return job.run(canonical(name), quantize)

    created = read_again(lambda: _base(stores, named.target, report), make)
    return make(None) if created is None else created


def _base(stores: Stores, target: ModelName | tuple[Path, ...], report: Report) -> StoredModel | None:
    """Returns the model that FROM names, or None if FROM names files. Pulls the model if it is not stored."""
    if not isinstance(target, ModelName):
        return None
    return stores.find(target) or pull(target, report=report, stores=stores)


@dataclass
class _Job:
    transaction: Transaction
    named: Resolved
    base: StoredModel | None
    draft_type: str
    use_draft: bool

    def run(self, name: ModelName, quantize: str) -> StoredModel:
        from eaglecpp._extension import core

        transaction, named, whole = self.transaction, self.named, self.named.modelfile
        if self.base is not None:
            whole = whole.over(self.base.modelfile())
        misspelt = self._check_template()
        transaction.report(Status("gathering model components"))
        files = self._target_files()
        facts = read_facts(files)
        if facts.is_drafter:
            raise UnsupportedError(f"FROM {files[0]} is a drafter ({facts.architecture}); name it in DRAFT")
        if quantize:
            out = transaction.directory / "quantized.gguf"
            transaction.report(Status(f"quantizing {facts.file_type} model to {quantize.upper()}"))
            quantize_target(files, facts, quantize, out)
            files, facts = (out,), read_facts([out])
        for adapter in named.adapters:
            core.check_lora(str(adapter), str(files[0]))
        if self.base is not None and not quantize:
            layers = self._inherited("model")
        else:
            is_split = len(files) > 1
            layers = [transaction.add_file("model", f, name=f.name if is_split else "") for f in files]
        adapters = [transaction.add_file("adapter", file) for file in named.adapters]
        layers += adapters or self._inherited("adapter")
        layers += self._inherited("projector")
        layers += [transaction.add_file("projector", file) for file in named.projectors]
        words = {key: getattr(whole, key) for key in ("renderer", "parser", "requires")}
        config: dict[str, Any] = facts.config() | {key: text for key, text in words.items() if text}
        if self.use_draft and (draft := self._draft(facts, self.draft_type)):
            layers.append(draft[0])
            config["draft"] = draft_config(draft[1])
        is_unset = named.draft is None and not named.draft_word
        drafts_head = self.use_draft and (named.draft_word == HEAD or (is_unset and whole.drafts_head))
        if drafts_head and not facts.has_head:
            what = f"{files[0]} ({facts.architecture})"
            raise MismatchError(f"DRAFT {HEAD}: {what} has no MTP head that can draft")
        layers += self._texts(whole, drafts_head)
        model = transaction.commit(name, layers, config, is_local=True)
        transaction.report(Status("success"))
        return replace(model, notices=(*named.modelfile.notices, *misspelt, *named.notices))

    def _check_template(self) -> list[Notice]:
        """Renders the Modelfile's TEMPLATE, and returns notices about likely misspellings in it. Raises
        ModelfileError.
        """
        text, at = self.named.modelfile.template, self.named.modelfile.template_at
        if not text:
            return []
        at, found, fields = at or Command("template", text), dict[str, str](), _FIELDS.split()
        try:
            template = ChatTemplate.choose(modelfile=text)
            template.check()
            for name in re.findall(r"\.([A-Z]\w*)", " ".join(re.findall(r"\{\{.*?\}\}", text, re.DOTALL))):
                if template.language == "go" and name not in fields and (near := nearest(name, fields)):
                    found[name] = f"TEMPLATE: there is no .{name}; did you mean .{near}?"
            if not template.takes.text:
                what = "the TEMPLATE does not print the user's messages"
                raise at.error(next(iter(found.values()), what), what if found else "")
        except TemplateError as error:
            raise at.error(f"TEMPLATE, line {error.line}: {error.message}", error.hint) from None
        return [at.notice(notice) for notice in found.values()]

    def _target_files(self) -> tuple[Path, ...]:
        if self.base is not None:
            return self.base.target_files()
        files = self.named.target
        assert not isinstance(files, ModelName), files
        return files if len(files) > 1 else tuple(map(files[0].with_name, all_parts(files[0].name)))

    def _draft(self, facts: Facts, as_type: str) -> tuple[Layer, Facts] | None:
        """Adds a layer with the drafter that the Modelfile names, or else with the base model's drafter.
        Returns the layer and the drafter's facts. Without a drafter, both are None.
        """
        from eaglecpp.convert import errors

        transaction, named, base = self.transaction, self.named, self.base
        try:
            if named.draft is not None:
                stores, report = transaction.stores, transaction.report
                file = find_draft(stores, named.draft, named.directory, facts, type=as_type, report=report)
            elif base is None or named.draft_word or not base.manifest.of_kind("draft"):
                return None
            else:
                file = base.files("draft")[-1]
            return add_draft(transaction, file, facts, type=as_type)
        except (MismatchError, errors.ConvertError, GgufError, UnsupportedError) as error:
            kind = MismatchError if isinstance(error, errors.TargetError) else type(error)
            raise kind(f"{error}. Use `create --no-draft` to omit the drafter") from None

    def _inherited(self, kind: str) -> list[Layer]:
        base = self.base
        if base is None:
            return []
        layers = base.manifest.of_kind(kind)
        return [self.transaction.add_layer(base, layer, origin=str(base.name)) for layer in layers]

    def _texts(self, whole: Modelfile, drafts_head: bool) -> list[Layer]:
        """Adds the layers of all texts in Ollama's order, and returns these layers."""
        add = self.transaction.add_bytes
        layers = [self._template(whole.template)] if whole.template else []
        if whole.system:
            layers.append(add("system", whole.system.encode()))
        layers += [add("license", text.encode()) for text in whole.license]
        if whole.parameters:
            layers.append(add("params", msgspec.json.encode(dict(sorted(whole.parameters.items())))))
        if whole.messages:
            messages = [{"role": turn.role, "content": turn.content} for turn in whole.messages]
            layers.append(add("messages", msgspec.json.encode(messages)))
        pragmas = [[p.name, p.args] for p in whole.pragmas if p.name != "draft"]
        pragmas += [["text_drafts", "on"]] if self.named.draft_word == TEXT else []
        pragmas += [["draft", HEAD]] if drafts_head else []
        return [*layers, add(PRAGMAS, msgspec.json.encode(pragmas))] if pragmas else layers

    def _template(self, text: str) -> Layer:
        """Adds a layer with the chat template. If Ollama chose the template, the layer is marked, because the
        GGUF's own template takes precedence over Ollama's choice.
        """
        base = self.base
        layer = self.transaction.add_bytes("template", text.encode())
        if self.named.modelfile.template or base is None:
            return layer
        origin = base.template_origin or ("" if base.own else str(base.name))
        return msgspec.structs.replace(layer, origin=origin)
