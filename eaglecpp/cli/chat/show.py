# SPDX-License-Identifier: MIT
"""`/show`: facts about the model of a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from eaglecpp.chat.message import Message
from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.set import unknown
from eaglecpp.cli.table import help_table, section
from eaglecpp.human import human_bytes
from eaglecpp.modelfile import Command, Modelfile
from eaglecpp.modelfile.parameters import ParameterValue, value_text
from eaglecpp.modelfile.pragmas import settings

__all__ = ["FACTS", "chat_modelfile", "modelfile_to_save", "show", "show_help"]

_TO_BE_COPIED = ("license", "modelfile", "system", "template")


def show(chat: Chat, rest: str) -> None:
    """Runs `/show ...`."""
    if not rest:
        chat.screen.say(show_help())
    elif rest in FACTS:
        chat.screen.say(FACTS[rest][0](chat), verbatim=rest in _TO_BE_COPIED)
    else:
        chat.screen.say(unknown("/show ", rest, FACTS))


def show_help() -> str:
    """What `/show` alone says."""
    rows = [(f"/show {name}", text) for name, (_, text) in FACTS.items()]
    return help_table("Available Commands:", rows) + "\n"


def chat_modelfile(chat: Chat) -> Modelfile:
    """A Modelfile of the model as changed by this chat: system prompt, parameters, messages."""
    source, conversation = chat.model.source, chat.conversation
    modelfile = source.model.modelfile
    draft = modelfile.draft
    if source.draft is not None and not draft:
        draft = (Command("draft", str(source.draft)),)
    return replace(
        modelfile,
        draft=draft,
        system=conversation.system or None,
        messages=_messages(chat),
        parameters={**modelfile.parameters, **chat.model.parameters},
    )


def modelfile_to_save(chat: Chat) -> Modelfile:
    """The same for `/save`: for a stored model, only what this chat adds to it."""
    source, conversation = chat.model.source, chat.conversation
    pragmas = (Command("strategy", chat.model.strategy_set),) if chat.model.strategy_set else ()
    if source.is_file:
        whole = chat_modelfile(chat)
        pragmas = (*whole.pragmas, *pragmas)
        return replace(whole, pragmas=pragmas, settings=settings(pragmas))
    draft = (Command("draft", str(source.draft)),) if source.draft_asked and source.draft else ()
    return Modelfile(
        from_=(Command("model", source.reference),),
        draft=draft,
        system=conversation.system or None,
        messages=_messages(chat),
        parameters=dict(chat.model.parameters),
        pragmas=pragmas,
        settings=settings(pragmas),
    )


def _messages(chat: Chat) -> tuple[Message, ...]:
    """What was said, as a Modelfile can keep it: without pictures."""
    said = (*chat.conversation.examples, *chat.conversation.messages)
    return tuple(replace(message, content=message.text, images=(), attached=0) for message in said)


def _info(chat: Chat) -> str:
    engine, source = chat.model.engine, chat.model.source
    native, metadata, tags = engine.native, engine.metadata, chat.model.chat.tags
    sections = [
        (
            "Model",
            [
                ("architecture", metadata.get("general.architecture", "unknown")),
                ("parameters", _billions(native.n_params)),
                ("context length", str(native.n_ctx_train)),
                ("embedding length", str(native.n_embd)),
                ("size", human_bytes(native.size_bytes)),
                ("file", str(source.target)),
            ],
        ),
        ("Drafter", _drafter(chat)),
        (
            "Chat",
            [
                ("context", f"{engine.n_ctx} tokens ({engine.plan.context.why})"),
                ("template", chat.model.chat.template.describe()),
                ("thinking", "no" if tags is None else f"between {tags.open} tags"),
            ],
        ),
    ]
    return "".join(section(title, rows) for title, rows in sections).rstrip("\n") + "\n"


def _drafter(chat: Chat) -> list[tuple[str, str]]:
    source = chat.model.source
    if chat.model.plan.drafts_text_alone:
        strategy = str(chat.model.engine.resolve(chat.model.strategy)[0])
        return [("drafts from", "the text itself"), ("strategy", strategy)]
    if source.draft is None:
        return [("", "none")]
    rows = [("file", str(source.draft)), ("strategy", str(chat.model.engine.resolve(chat.model.strategy)[0]))]
    info = chat.model.engine.draft_info
    if info is None:
        return [*rows, ("", "not loaded")]
    if info["kind"] != "eagle":
        what = "the model's own head" if info["kind"] == "head" else "a small model"
        return [("kind", what), ("architecture", str(info["arch"])), *rows]
    return [
        ("architecture", str(info["arch"])),
        ("layers", str(info["n_layer"])),
        ("draft vocabulary", f"{info['n_draft_vocab']} of {info['n_vocab']} tokens"),
        ("features of layers", ", ".join(map(str, info["target_layers"]))),
        *rows,
    ]


def _billions(n_params: int) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if n_params >= size:
            return f"{n_params / size:.1f}{letter}"
    return str(n_params)


def _license(chat: Chat) -> str:
    texts = [*chat.model.source.model.modelfile.license]
    if not texts:
        texts = [text for text in [chat.model.engine.metadata.get("general.license", "")] if text]
    return "\n\n".join(texts) or "No license was specified for this model."


def _modelfile(chat: Chat) -> str:
    return chat_modelfile(chat).to_text()


def _parameters(chat: Chat) -> str:
    lines = ["Model defined parameters:"]
    lines += _rows(chat.model.source.model.modelfile.parameters) or [
        "  No additional parameters were specified for this model."
    ]
    if chat.model.parameters:
        lines += ["", "User defined parameters:", *_rows(chat.model.parameters)]
    return "\n".join([*lines, ""])


def _rows(parameters: Mapping[str, ParameterValue]) -> list[str]:
    rows = []
    for name, value in parameters.items():
        texts = [f'"{text}"' for text in value] if isinstance(value, tuple) else [value_text(value)]
        rows += [f"  {name:<30} {text}" for text in texts]
    return rows


def _system(chat: Chat) -> str:
    return chat.conversation.system or "No system message was specified for this model."


def _template(chat: Chat) -> str:
    template = chat.model.chat.template
    return f"{template.text}\n\n({template.describe()})"


FACTS: dict[str, tuple[Callable[[Chat], str], str]] = {
    "info": (_info, "Model, drafter, context and template"),
    "license": (_license, "License of the model"),
    "modelfile": (_modelfile, "A Modelfile that makes this model, including this chat"),
    "parameters": (_parameters, "Parameters of the model, and those set here"),
    "system": (_system, "The system prompt"),
    "template": (_template, "The chat template, and why this one"),
}
