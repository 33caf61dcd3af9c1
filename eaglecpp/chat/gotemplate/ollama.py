# SPDX-License-Identifier: MIT
"""How Ollama turns a conversation into a prompt with a Go template.

Three modes, chosen by what the template mentions: all messages at once (`.Messages`), fill-in-the-middle
(prompt and suffix given), or the older form that is run once per exchange with `.System`, `.Prompt` and
`.Response`, the last time cut after `.Response` so that the model continues from there. Source:
ollama/ollama: template/template.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglecpp.chat.message import Message

from .data import collated, message_value, tool_values
from .evaluate import Limits, execute
from .functions import FUNCTION_NAMES
from .nodes import Action, Branch, Command, Field, Node, Operand, Pipe, identifiers
from .parse import parse

__all__ = ["Template", "TemplateInput"]

_RESPONSE = Action(Pipe((Command((Field(("Response",), 0),), 0),), (), False, 0), 0)


@dataclass(frozen=True)
class TemplateInput:
    """What a template is rendered with.

    tools: definitions as the chat APIs have them
    think: None = not asked for; a bool, or a level such as "high"
    prompt, suffix: for fill-in-the-middle, both non-empty; messages are not used then
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    think: bool | str | None = None
    prompt: str = ""
    suffix: str = ""


@dataclass(frozen=True)
class Template:
    """A parsed TEMPLATE. uses: the fields and variables it mentions, in lower case."""

    text: str
    templates: Mapping[str, Sequence[Node]] = field(repr=False)
    uses: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parses a template; one without `.Messages` and `.Response` gets a `.Response` at its end.

        Raises TemplateError.
        """
        templates = parse(text, FUNCTION_NAMES)
        uses = frozenset(name.lower() for body in templates.values() for name in identifiers(body))
        if not uses & {"messages", "response"}:
            templates[""] = (*templates[""], _RESPONSE)
        return cls(text, templates, uses)

    def render(self, conversation: TemplateInput, limits: Limits | None = None) -> str:
        """The prompt. Raises TemplateError for an error at run time or beyond the limits."""
        think = conversation.think
        common = {
            "Response": "",
            "Think": bool(think),
            "ThinkLevel": think if isinstance(think, str) else "",
            "IsThinkSet": think is not None,
        }
        if conversation.prompt and conversation.suffix:
            data = {**common, "Prompt": conversation.prompt, "Suffix": conversation.suffix}
            return execute(self.templates, data, limits=limits)
        messages = collated(conversation.messages)
        if "messages" not in self.uses:
            return self._exchanges(messages, common, limits)
        systems = [message.content for message in conversation.messages if message.role == "system"]
        data = {
            **common,
            "System": "\n\n".join(systems),
            "Messages": [message_value(message) for message in messages],
            "Tools": tool_values(conversation.tools),
        }
        return execute(self.templates, data, limits=limits)

    def _exchanges(
        self, messages: Sequence[Message], common: Mapping[str, Any], limits: Limits | None
    ) -> str:
        """The older form: one execution per exchange, the last one open at its end."""
        texts: list[str] = []
        turn = {"System": "", "Prompt": "", "Response": ""}
        for message in messages:
            pending = {"system": ("Prompt", "Response"), "user": ("Response",)}.get(message.role, ())
            if any(turn[name] for name in pending):
                texts.append(execute(self.templates, {**common, **turn}, limits=limits))
                turn = {"System": "", "Prompt": "", "Response": ""}
            name = {"system": "System", "user": "Prompt", "assistant": "Response"}.get(message.role)
            if name:
                turn[name] = message.content
        open_ended = {**self.templates, "": _Cut().body(self.templates[""])}
        texts.append(execute(open_ended, {**common, **turn}, limits=limits))
        return "".join(texts)


class _Cut:
    """Removes everything behind the first place that prints `.Response`, inside the same action too."""

    def __init__(self) -> None:
        self.found = False

    def body(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        kept: list[Node] = []
        for node in nodes:
            if self.found:
                break
            if isinstance(node, Action):
                pipe = self._pipe(node.pipe)
                if pipe is not None:
                    kept.append(Action(pipe, node.line))
            elif isinstance(node, Branch):
                body = self.body(node.body)
                orelse = None if node.orelse is None else self.body(node.orelse)
                kept.append(Branch(node.kind, node.pipe, body, orelse, node.line))
            else:
                kept.append(node)
        return tuple(kept)

    def _pipe(self, pipe: Pipe) -> Pipe | None:
        commands: list[Command] = []
        for command in pipe.commands:
            operands = [kept for kept in map(self._operand, command.operands) if kept is not None]
            if not operands:
                return None
            commands.append(Command(tuple(operands), command.line))
        return Pipe(tuple(commands), pipe.variables, pipe.is_assignment, pipe.line)

    def _operand(self, operand: Operand) -> Operand | None:
        if isinstance(operand, Field) and "Response" in operand.names:
            self.found = True
            return operand  # kept wherever it is in its action, also a second time
        if self.found:
            return None
        return self._pipe(operand) if isinstance(operand, Pipe) else operand
