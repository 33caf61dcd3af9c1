# SPDX-License-Identifier: MIT
"""`eaglecpp show`: describes a stored model in Ollama's sections, plus a section for its drafter. `eaglecpp
inspect`: shows the metadata of a file. Both commands take a model's name or a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.command import command, complete_model, json_option, option
from eaglecpp.cli.open_engine import run_defaults
from eaglecpp.cli.options import stored_name
from eaglecpp.cli.terminal import labelled, note, section, write, write_json
from eaglecpp.files import exists
from eaglecpp.human import counted, human_bytes
from eaglecpp.learn.records import Learning
from eaglecpp.opening.find import find_path, find_target, resolved, template_in_use, with_draft
from eaglecpp.opening.plan import OpeningPlan, make_plan
from eaglecpp.references import is_path_text
from eaglecpp.store import Stores
from eaglecpp.store.describe import (
    capabilities,
    everything,
    head_facts,
    modelfile_text,
    parameter_rows,
    parameter_text,
)
from eaglecpp.store.model import StoredModel
from eaglecpp.store.store import read_again

if TYPE_CHECKING:
    from eaglecpp.modelfile.model import Modelfile
    from eaglecpp.store.facts import Facts

_HEAD_LINES = 2
_WORDS = {"license": "license", "system": "system prompt", "parameters": "parameter"}


@command(
    ("eaglecpp show smollm2", "its properties, and how it is opened"),
    ("eaglecpp show smollm2 --modelfile", "the Modelfile that creates it"),
)
@click.argument("name", metavar="MODEL", shell_complete=complete_model)
@option("--license", "part", flag_value="license", help="Show the license.")
@option("--modelfile", "part", flag_value="modelfile", help="Show a Modelfile that creates the same model.")
@option("--parameters", "part", flag_value="parameters", help="Show the parameters.")
@option("--system", "part", flag_value="system", help="Show the system prompt.")
@option("--template", "part", flag_value="template", help="Show the chat template in use, and why.")
@json_option("everything as JSON, as in Ollama's /api/show")
def show(name: str, part: str | None, as_json: bool) -> None:
    """Show information about MODEL: a stored name, or a GGUF file, for which it is the same as `inspect`."""
    if (path := find_path(name)) is not None:
        if part is not None:
            raise click.UsageError(f"{name} is a file, not a stored model; remove --{part}")
        _show_file(path, as_json)
        return
    read_again(partial(Stores.open().get, stored_name(name)), lambda model: _show(model, part, as_json))


@command(
    ("eaglecpp inspect model.gguf", "a file"),
    ("eaglecpp inspect smollm2", "the file of a stored model"),
    name="inspect",
)
@click.argument("model", shell_complete=complete_model)
@json_option("the facts as JSON")
def inspect(model: str, as_json: bool) -> None:
    """Show the contents of a GGUF file, or of a stored MODEL's, and what it is compatible with."""
    is_name = not exists(Path(model)) and not is_path_text(model)
    _show_file(find_target(model).target if is_name else Path(model), as_json)


def _show_file(path: Path, as_json: bool) -> None:
    # The import is here, because a stored model can be described without the libraries that read files.
    from eaglecpp.convert import inspect_file

    facts = inspect_file(path)
    if as_json:
        write_json(facts)
    else:
        write(labelled(_fact_rows(facts)))


def _fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Formats the result of `inspect_file` as pairs of a name and a text."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        if key == "types":
            sizes = {kind: (counted(one["tensors"], "tensor"), one["bytes"]) for kind, one in value.items()}
            rows += [("type", f"{kind}: {n}, {human_bytes(n_bytes)}") for kind, (n, n_bytes) in sizes.items()]
        elif isinstance(value, dict):
            rows.append((key, ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if v is not None)))
        elif value is not None:
            rows.append((key, human_bytes(value) if key == "size" else _plain(value)))
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


def _show(model: StoredModel, part: str | None, as_json: bool) -> None:
    modelfile = model.modelfile()
    if as_json:  # the output is the same as that of /api/show, plus the plan that `run` would follow
        heads = head_facts(model)
        opening = None if heads[0] is None else _plan(model).as_dict()
        write_json(everything(model, heads, template_in_use(model, heads[0])) | {"opening": opening})
        return
    if part is None:
        write(_overview(model, modelfile))
        for notice in modelfile.notices:
            note(str(notice))
        return
    text, why = _part(model, modelfile, part)
    write(text if text.endswith("\n") or not text else f"{text}\n")
    if why or not text:
        note(why or f"no {_WORDS[part]} was specified for {model.name}")


def _plan(model: StoredModel) -> OpeningPlan:
    """Returns the plan by which `run` would open the model."""
    return make_plan(with_draft(resolved(model)), defaults=run_defaults())


def _part(model: StoredModel, modelfile: Modelfile, part: str) -> tuple[str, str]:
    """Returns one part of the model's description, and where this part comes from."""
    if part == "modelfile":
        return modelfile_text(model, modelfile), ""
    if part == "parameters":
        return parameter_text(modelfile), ""
    if part == "system":
        return modelfile.system or "", ""
    facts, _ = head_facts(model)
    if part == "template":
        template = template_in_use(model, facts)
        none = ("", "a drafter has no chat template")
        return (f"{template.text}\n", template.describe()) if template else none
    own = "" if facts is None else facts.file.text("general.license", "")
    return "\n".join(modelfile.license) or own, ""


def _overview(model: StoredModel, modelfile: Modelfile) -> str:
    facts, draft = head_facts(model)
    stock = model.draft_file() if facts and draft else None
    template, settings = template_in_use(model, facts), modelfile.settings
    is_set = settings.options or settings.chat_template != "auto"
    blocks: dict[str, Sequence[Sequence[str]]] = {
        "Model": model_rows(facts, model) if facts else (),
        "Capabilities": [[word] for word in capabilities(model, facts)] if facts else (),
        "Draft": _draft_rows(model, draft) if draft else (),
        # Number of conversations that `--learn` recorded, and the drafter that was trained on these
        # conversations.
        "Learning": Learning.of(model.target_files()[0]).rows(stock) if stock else (),
        "Template": [[template.describe()]] if template else (),
        "Opened with": _plan(model).rows() if template else (),
        "Parameters": parameter_rows(modelfile),
        "Settings": [[p.name, p.args] for p in modelfile.pragmas] if is_set else (),
        "System": _head(modelfile.system or ""),
        "License": _head("\n".join(modelfile.license)),
    }
    return "".join(section(title, rows) for title, rows in blocks.items() if rows)


def model_rows(facts: Facts, model: StoredModel | None = None) -> list[list[str]]:
    """Returns the properties of a file or stored model as rows of text."""
    rows = [
        ["architecture", facts.architecture],
        ["parameters", (model and model.text("model_type")) or facts.config()["model_type"]],
        ["context length", str(facts.context_length or "")],
        ["embedding length", str(facts.hidden_size or "")],
        ["quantization", (model and model.text("file_type")) or facts.file_type],
    ]
    if model is not None:
        rows += [
            ["size", human_bytes(model.size)],
            ["requires", model.text("requires")],
            ["adapters", ", ".join(human_bytes(layer.size) for layer in model.manifest.of_kind("adapter"))],
            ["store", f"{model.owner}'s, {model.root}" if model.owner else ""],
        ]
    return [row for row in rows if row[1]]


def _draft_rows(model: StoredModel, facts: Facts) -> list[list[str]]:
    file, arch, kind = facts.file, facts.architecture, facts.draft_kind
    switches = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
    on = [name for name in switches if file.get(f"{arch}.{name}")]
    on += ["latent attention"] if file.get(f"{arch}.attention.kv_lora_rank") else []
    rows = [
        ["architecture", arch if kind == arch else f"{arch} ({kind})"],
        ["parameters", facts.config()["model_type"]],
        ["quantization", facts.file_type],
        ["size", human_bytes(model.manifest.of_kind("draft")[-1].size)],
        ["layers read", ", ".join(f"R_{k}" for k in file.get(f"{arch}.target_layers") or [])],
        ["switches", ", ".join(on) or "none"],
        ["source", file.text("eaglecpp.source", "")],
    ]
    return [row for row in rows if row[1]]


def _head(text: str) -> list[list[str]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = [[line] for line in lines[:_HEAD_LINES]]
    return [*shown, ["..."]] if len(lines) > _HEAD_LINES else shown
