# SPDX-License-Identifier: MIT
"""Describes a stored model for `list` and `show`, and for Ollama's `/api/tags` and `/api/show`.

`list_entry` reads only the manifest and the config. `everything` also reads the headers of the GGUF files.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.formats import layout_of, thinking_tags
from eaglecpp.modelfile.parameters import value_text
from eaglecpp.modelfile.syntax import Command, ModelfileError, holdable
from eaglecpp.modelfile.syntax import format as format_modelfile
from eaglecpp.options import HEAD, TEXT

from .model import StoredModel

if TYPE_CHECKING:
    from eaglecpp.chat.template import ChatTemplate
    from eaglecpp.modelfile.model import Modelfile

    from .facts import Facts

    Heads = tuple[Facts | None, Facts | None]


def draft_text(model: StoredModel) -> str:
    """Returns the text of the DRAFT column. This is the drafter's kind, `text` if the text itself drafts, the
    head's name if the model's own head drafts, a note if the model is itself a drafter, or "" for a model
    that does not draft.
    """
    if not model.manifest.of_kind("draft"):
        pragmas = model.pragmas()
        drafts_head = model.own and ("draft", HEAD) in pragmas
        drafts_text = [value for name, value in pragmas if name == "text_drafts"][-1:] == ["on"]
        return TEXT if drafts_text else HEAD if drafts_head else ""
    kind = model.draft_kind or "yes"
    return f"{kind} (drafter only)" if model.is_drafter else kind


def list_entry(model: StoredModel) -> dict[str, Any]:
    """Returns a model's entry in `list --json` and Ollama's /api/tags."""
    details = {
        "parent_model": "",
        "format": model.text("model_format") or "gguf",
        "family": model.text("model_family"),
        "families": model.config.get("model_families"),
        "parameter_size": model.text("model_type"),
        "quantization_level": model.text("file_type"),
    }
    return {
        "name": str(model.name),
        "model": str(model.name),
        "modified_at": model.modified.isoformat(),
        "size": model.size,
        "digest": model.digest,
        "details": details,
        "draft": draft_text(model) or None,
        "store": str(model.root),
        "read_only": not model.own,
    }


def everything(model: StoredModel, heads: Heads, template: ChatTemplate | None) -> dict[str, Any]:
    """Returns the content of Ollama's /api/show, and eaglecpp's additions. heads: the result of `head_facts`;
    template: the chat template in use.
    """
    from .facts import metadata

    facts, draft = heads
    modelfile = model.modelfile()
    entry = list_entry(model)
    return {
        "license": "\n".join(modelfile.license),
        "modelfile": modelfile_text(model, modelfile),
        "parameters": parameter_text(modelfile),
        "template": modelfile.template or "",
        "template_in_use": None if template is None else template.describe(),
        "system": modelfile.system or "",
        "details": entry["details"]
        | {
            "parent_model": next((layer.origin for layer in model.manifest.of_kind("model")), ""),
            "family": entry["details"]["family"] or (head.architecture if (head := facts or draft) else ""),
        },
        "messages": [{"role": turn.role, "content": turn.content} for turn in modelfile.messages],
        "model_info": {} if facts is None else metadata(facts.file),
        "draft_info": None if draft is None else metadata(draft.file),
        "capabilities": [] if facts is None else capabilities(model, facts),
        "files": {
            "target": [] if facts is None else list(map(str, model.target_files())),
            "draft": None if draft is None else str(model.draft_file()),
            "adapters": list(map(str, model.files("adapter"))),
        },
        **{key: entry[key] for key in ("modified_at", "digest", "store", "read_only")},
    }


def head_facts(model: StoredModel) -> Heads:
    """Reads the GGUF headers of target and drafter."""
    from .facts import read_facts

    draft = model.draft_file()
    target = None if model.is_drafter else read_facts(model.target_files())
    return target, None if draft is None else read_facts([draft])


def capabilities(model: StoredModel, facts: Facts) -> list[str]:
    """Returns the model's capabilities, in Ollama's terms."""
    first = "embedding" if f"{facts.architecture}.pooling_type" in facts.file.fields else "completion"
    template = facts.file.text("tokenizer.chat_template", "") + "".join(model.texts("template", "prompt"))
    others = {
        "tools": "tools" in template or ".Tools" in template,
        "vision": bool(model.files("projector")),
        "insert": any(f"tokenizer.ggml.{key}_token_id" in facts.file.fields for key in ("fim_suf", "suffix")),
        "thinking": thinking_tags(layout_of(template)) is not None,
    }
    return [first, *(word for word, can in others.items() if can)]


def parameter_rows(modelfile: Modelfile) -> list[list[str]]:
    """Returns the name and the text of each parameter of a Modelfile. String values are quoted."""
    quoted, rows = partial(json.dumps, ensure_ascii=False), []
    for name, value in sorted(modelfile.parameters.items()):
        for item in value if isinstance(value, tuple) else (value,):
            rows.append([name, quoted(item) if isinstance(item, str) else value_text(item)])
    return rows


def parameter_text(modelfile: Modelfile) -> str:
    """Formats a Modelfile's parameters, one line per value, with names padded to 30 columns."""
    return "\n".join(f"{name:<30} {text}" for name, text in parameter_rows(modelfile))


def for_both(modelfile: Modelfile, draft_kind: str) -> Modelfile:
    """Returns a Modelfile that both Ollama and eaglecpp can read. A drafter that Ollama cannot run moves into
    a pragma, because Ollama would load it as an MTP drafter.
    """
    if not draft_kind.startswith(("eagle", "dflash", "dspark")):
        return modelfile
    pragmas = (*modelfile.pragmas, *(replace(command, name="draft") for command in modelfile.draft))
    return replace(modelfile, draft=(), pragmas=pragmas)


def modelfile_text(model: StoredModel, modelfile: Modelfile) -> str:
    """Returns a Modelfile's text in Ollama's form: a comment on how to build on the model, then the commands
    that recreate the model. A command that a Modelfile cannot express becomes a comment with the reason.
    """
    head = (
        f'# Modelfile generated by "eaglecpp show"\n'
        f"# To build a new Modelfile based on this, replace FROM with:\n# FROM {model.name}\n\n"
    )
    modelfile = for_both(modelfile, model.draft_kind)
    pragmas = "".join(_written(pragma, is_pragma=True) for pragma in modelfile.pragmas)
    return head + pragmas + "".join(map(_written, modelfile.to_commands()))


def _written(command: Command, is_pragma: bool = False) -> str:
    """Formats a command of a Modelfile, and leaves out the characters that Ollama's parser would drop. A
    command that a Modelfile cannot express becomes a comment with the reason.
    """
    commands = [replace(command, args=holdable(command.args))]
    try:
        return format_modelfile((), commands) if is_pragma else format_modelfile(commands)
    except ModelfileError as error:
        return f"# Left out: {' '.join(error.message.split())}\n"
