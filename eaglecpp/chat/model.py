# SPDX-License-Identifier: MIT
"""`ChatModel`: how one opened model chats: messages to a prompt that fits, and an answer back to a message.

The only place that knows both directions. `Engine`, `AsyncEngine`, `ChatSession`, `eaglecpp run` and the
server all go through it. It holds no conversation and generates nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.conversation import Conversation, PromptMemory, fold_system
from eaglecpp.chat.images import image_mark
from eaglecpp.chat.jinja_bounds import rendered_together
from eaglecpp.chat.message import Message, Role, ToolCall
from eaglecpp.chat.reader import AnswerReader, ThinkTags, tags_of
from eaglecpp.chat.template import ChatTemplate, Rendered
from eaglecpp.chat.tool_calls import CallMarks, ToolReader, call_marks
from eaglecpp.errors import ContextFullError, InvalidTypeError, TemplateError, UnsupportedError

if TYPE_CHECKING:
    from eaglecpp.engine.infill import Infill
    from eaglecpp.engine.vocabulary import Vocabulary
    from eaglecpp.opening.find import ResolvedModel
    from eaglecpp.results import Completion

__all__ = ["ChatModel", "ChatPrompt", "answer_room"]

_CONTROL = re.compile(r"<\|[^<>|]+\|>|\[/?[A-Z_]+\]|<[^<>]+>")
_ROOM = 1024  # tokens kept free for an answer whose length nobody limits


def answer_room(max_tokens: int, n_ctx: int) -> int:
    """Tokens that a prompt which is cut to fit leaves for its answer."""
    return max(1, min(max_tokens if max_tokens >= 0 else _ROOM, n_ctx // 4))


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation, or a text without a template, and its tokens. tools: what the answer may call;
    n_left_out: messages that had to be left out for want of room.
    """

    rendered: Rendered
    tokens: list[int] = field(repr=False)
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    n_left_out: int = 0


class ChatModel:
    """model: whose template, system prompt and messages are used. gguf_template: what the target's file
    carries, "" for none.

    `folds_system`: its template refuses the system role, so `render` puts a system message before the first
    question.
    """

    def __init__(
        self, vocabulary: Vocabulary, model: ResolvedModel, gguf_template: Callable[[], str]
    ) -> None:
        self.folds_system = False
        self._vocabulary = vocabulary
        self._model = model
        self._gguf_template = gguf_template
        self._base: ChatModel | None = None  # whose template another one replaces

    @cached_property
    def template(self) -> ChatTemplate:
        """The template, and why it is this one; the bare prompt where the model has none."""
        vocabulary = self._vocabulary
        return self._model.chat_template(
            self._gguf_template(), vocabulary.has_token, *vocabulary.border_texts
        )

    def with_template(self, template: str | ChatTemplate | None) -> ChatModel:
        """The same with another template, Jinja or Go; None = this one."""
        if template is None:
            return self
        if isinstance(template, str):
            bos_text, eos_text = self._vocabulary.border_texts
            template = ChatTemplate.choose(modelfile=template, bos_text=bos_text, eos_text=eos_text)
        other = ChatModel(self._vocabulary, self._model, self._gguf_template)
        other.template, other._base = template, self
        return other

    def require_template(self) -> None:
        """Raises UnsupportedError where the model's own template is only a guess from its vocabulary."""
        if not self.template.source and self._model.template_choice == "auto":
            raise UnsupportedError(
                f"{self._model.target.name} has no chat template (tokenizer.chat_template): it is probably a "
                "base model. Use generate(), or give template="
            )

    # Messages to a prompt

    def conversation(self, messages: Sequence[Any] = (), system: str | None = None) -> Conversation:
        """Messages behind the system prompt and messages of the model; a system message of their own stands
        in the place of its system prompt, and so does `system`. Raises InvalidTypeError, InvalidValueError.
        """
        turns = _checked(messages)
        if system is None:
            system = turns.pop(0).content if turns and turns[0].role == Role.SYSTEM else self._model.system
        return Conversation(system or "", self._model.messages, turns)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
    ) -> Rendered:
        """The text of a prompt. For a template that refuses the system role, a system message goes before the
        first question. Raises TemplateError; UnsupportedError for images without a projector.
        """
        images = {image_mark(data): data for message in messages for data in message.images}
        if images and self._vocabulary.projector is None:
            raise UnsupportedError(
                f"{self._model.target.name} was opened without a projector, so it reads no images; give the "
                "model's with --mmproj (mmproj=)"
            )
        rendered = self._rendered(messages, tools, think)
        return replace(rendered, images=images) if images else rendered

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], think: bool | str | None
    ) -> Rendered:
        folded = fold_system(messages)
        if not self.folds_system:
            try:
                return self.template.render(messages, tools=tools, think=think)
            except TemplateError:
                if folded == list(messages):
                    raise
        rendered = self.template.render(folded, tools=tools, think=think)
        self.folds_system = True
        return rendered

    def prompt(
        self,
        messages: Sequence[Message],
        memory: PromptMemory | None = None,
        *,
        n_ctx: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
    ) -> ChatPrompt:
        """The prompt of exactly these messages. memory: of the caches that it will meet. n_ctx: raises
        ContextFullError for a prompt that leaves no room there, 0 = in the engine's context.
        """
        with rendered_together():
            rendered = self.render(messages, tools=tools, think=think)
        memory = memory or PromptMemory(self._vocabulary)
        return ChatPrompt(rendered, memory.tokens(rendered, n_ctx), tools)

    def fitting(
        self,
        conversation: Conversation,
        memory: PromptMemory | None = None,
        *,
        n_ctx: int,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | str | None = None,
    ) -> ChatPrompt:
        """The prompt of a conversation, out of which the oldest exchanges are left where it, tools and all,
        and an answer of `max_tokens` (at most a quarter of the context) do not fit into `n_ctx` tokens.
        """
        made: dict[int, ChatPrompt] = {}

        def count(messages: Sequence[Message]) -> int:
            try:
                prompt = self.prompt(messages, memory, n_ctx=n_ctx, tools=tools, think=think)
            except ContextFullError:
                return n_ctx + 1
            made[len(messages)] = prompt
            return len(prompt.tokens)

        with rendered_together():
            conversation.fit(count, n_ctx, answer_room(max_tokens, n_ctx))
            messages = conversation.prompt()
            prompt = made.get(len(messages)) or self.prompt(
                messages, memory, n_ctx=n_ctx, tools=tools, think=think
            )
            return replace(prompt, n_left_out=conversation.n_left_out)

    def infill(self, asked: Infill, n_most: int = 0) -> ChatPrompt:
        """The prompt whose answer goes between two texts: by a template that knows `.Suffix`, the one in use
        or the one that came with the model, else by the tokens of the target's file. n_most: as
        `Infill.tokens`; a template's prompt is never cut. Raises UnsupportedError where it has neither.
        """
        is_plain = asked.extra is None and not asked.begun and not asked.suffix_first
        for template in (self.template, self._stored) if is_plain else ():
            rendered = None if template is None else template.infill(asked.prefix, asked.suffix)
            if rendered is not None:
                memory = PromptMemory(self._vocabulary)
                return ChatPrompt(rendered, memory.tokens(rendered, n_ctx=0))
        return ChatPrompt(Rendered("", has_bos=False), asked.tokens(self._vocabulary, n_most))

    @cached_property
    def _stored(self) -> ChatTemplate | None:
        """The template in the store, which the file's own stands before."""
        text = self._model.stored_template
        return self.with_template(text).template if text else None

    # An answer to a message

    @cached_property
    def tags(self) -> ThinkTags | None:
        """The tags around the model's thinking; None if it does not think."""
        found = None if self.template.language == "family" else tags_of(self.template.text)
        return found or (self._base.tags if self._base is not None else None)

    def thinking(self, asked: bool | str | None, *, has_form: bool) -> bool | str | None:
        """`think` for a prompt whose answer may have to have a form, such as JSON. That forbids thinking, so
        a template that opens a thought unasked must not.
        """
        return False if asked is None and has_form and self.tags is not None else asked

    def reader(self, prompt: ChatPrompt) -> AnswerReader:
        """Splits an answer, while it streams, into thinking and the rest."""
        marks = self._think_marks | (self._call_tokens if prompt.tools else {})
        return AnswerReader(self._vocabulary.token_to_piece, self.tags, marks, prompt.rendered.text[-100:])

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader | None:
        """Finds calls of tools, in JSON schema as in the OpenAI API, in an answer; None without tools."""
        if not tools:
            return None
        functions = [tool.get("function", tool) for tool in tools]
        schemas = {str(one.get("name", "")): one.get("parameters") for one in functions}
        return ToolReader(
            self._calls,
            tools={name: schema if isinstance(schema, Mapping) else {} for name, schema in schemas.items()},
        )

    def message(self, prompt: ChatPrompt, completion: Completion) -> Message:
        """The assistant's message that an answer is."""
        reader = self.reader(prompt)
        reader.decode(completion.tokens, completion.accepted)
        reader.finish(completion.text)
        tools = self.tool_reader(prompt.tools)
        if tools is None:
            return Message(Role.ASSISTANT, reader.content, reader.thinking)
        found = tools.feed(reader.content) + tools.finish()
        content = "".join(part for part in found if isinstance(part, str))
        calls = tuple(part for part in found if isinstance(part, ToolCall))
        return Message(Role.ASSISTANT, content, reader.thinking, calls)

    @cached_property
    def _calls(self) -> CallMarks | None:
        return call_marks(self.template.text) or (self._base._calls if self._base is not None else None)

    @cached_property
    def _think_marks(self) -> dict[int, str]:
        return self._marks(self.tags.open + self.tags.close + self.tags.plain) if self.tags else {}

    @cached_property
    def _call_tokens(self) -> dict[int, str]:
        return self._marks(self._calls.open + self._calls.close + self._calls.inside) if self._calls else {}

    def _marks(self, text: str) -> dict[int, str]:
        """The control tokens, which have no text of their own, among the marks in `text`."""
        tokens = {mark: self._vocabulary.token_of(mark) for mark in _CONTROL.findall(text)}
        return {
            token: mark
            for mark, token in tokens.items()
            if token is not None and not self._vocabulary.token_to_piece(token)
        }


def _checked(messages: Sequence[Any]) -> list[Message]:
    if isinstance(messages, str | bytes | Mapping | Message) or not hasattr(messages, "__iter__"):
        found: Any = messages
    else:
        turns = list(messages)
        wrong = [turn for turn in turns if not isinstance(turn, Message | Mapping)]
        if not wrong:
            return [turn if isinstance(turn, Message) else Message.from_dict(turn) for turn in turns]
        found = wrong[0]
    kind = "" if found is messages else "a list with "
    raise InvalidTypeError(
        'expected a list of messages such as [{"role": "user", "content": "Hello"}], found '
        f"{kind}{type(found).__name__} {str(found)[:40]!r}"
    )
