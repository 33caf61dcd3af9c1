# SPDX-License-Identifier: MIT
"""`/show`: facts about the model of a chat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eaglecpp.chat.message import Message
from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.words import NO_SYSTEM, Word
from eaglecpp.cli.open_engine import plan_text
from eaglecpp.modelfile import Command, Modelfile
from eaglecpp.store.describe import parameter_text


def chat_modelfile(chat: Chat, *, to_save: bool = False) -> Modelfile:
    """A Modelfile of the model as changed by this chat: system prompt, parameters, strategy, messages.
    to_save: of a stored model, only what this chat adds to it
    """
    source, model = chat.model.source, chat.model
    adds = to_save and not source.is_file
    base = Modelfile(from_=(Command("model", source.model.reference),)) if adds else source.model.modelfile
    draft = base.draft
    if source.draft is not None and not draft and (source.draft_asked or not adds):
        draft = (Command("draft", str(source.draft)),)
    pragmas = base.pragmas
    if model.strategy_set:
        pragmas = (*pragmas, Command("strategy", model.strategy_set))
    return replace(
        base,
        draft=draft,
        system=chat.conversation.system or None,
        messages=_messages(chat),
        parameters={**base.parameters, **model.parameters},
        pragmas=pragmas,
    )


def _messages(chat: Chat) -> tuple[Message, ...]:
    """What was said, as a Modelfile can keep it: without pictures."""
    said = (*chat.conversation.examples, *chat.conversation.messages)
    return tuple(replace(message, content=message.text, images=(), attached=0) for message in said)


def _info(chat: Chat) -> str:
    return plan_text(chat.model.engine)


def _license(chat: Chat) -> str:
    texts = chat.model.source.model.modelfile.license
    text = "\n\n".join(texts) if texts else chat.model.engine.metadata.get("general.license", "")
    return text or "No license was specified for this model."


def _modelfile(chat: Chat) -> str:
    return chat_modelfile(chat).to_text()


def _parameters(chat: Chat) -> str:
    none = "  No additional parameters were specified for this model."
    own = chat.model.source.model.modelfile
    lines = ["Model defined parameters:", *(_rows(own) or [none])]
    if chat.model.parameters:
        set_here = replace(own, parameters=chat.model.parameters)
        lines += ["", "User defined parameters:", *_rows(set_here)]
    return "\n".join([*lines, ""])


def _rows(modelfile: Modelfile) -> list[str]:
    return [f"  {line}" for line in parameter_text(modelfile).splitlines()]


def _system(chat: Chat) -> str:
    return chat.conversation.system or NO_SYSTEM


def _template(chat: Chat) -> str:
    template = chat.model.chat.template
    return f"{template.text}\n\n({template.describe()})"


def _fact(tell: Callable[[Chat], str], what: str, *, verbatim: bool = False) -> Word:
    """verbatim: it is made to be copied"""
    return Word(lambda chat, rest: chat.screen.say(tell(chat), verbatim=verbatim), what)


FACTS = {
    "info": _fact(_info, "What is opened, and where each option comes from"),
    "license": _fact(_license, "License of the model", verbatim=True),
    "modelfile": _fact(_modelfile, "A Modelfile that makes this model, including this chat", verbatim=True),
    "parameters": _fact(_parameters, "Parameters of the model, and those set here"),
    "system": _fact(_system, "The system prompt", verbatim=True),
    "template": _fact(_template, "The chat template, and why this one", verbatim=True),
}
