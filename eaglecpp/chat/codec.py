# SPDX-License-Identifier: MIT
"""`ChatCodec` turns messages into a prompt that fits, and an answer into a message.

`Engine`, `AsyncEngine`, `ChatSession`, `eaglecpp run` and the server all use a `ChatCodec`. A `ChatCodec`
keeps no conversation and generates nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.bounds import rendered_together
from eaglecpp.chat.call_syntax import Tools
from eaglecpp.chat.conversation import Conversation
from eaglecpp.chat.formats import GPT_OSS, HERMES, KNOWN, CallFormat, Layout, behind_thought, thinking_tags
from eaglecpp.chat.images import image_mark
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.reader import AnswerReader, Reader
from eaglecpp.chat.template import ChatTemplate, Rendered
from eaglecpp.chat.think_budget import ThinkBudget
from eaglecpp.chat.turns import Accepted, accepted, fold_system, lead_system
from eaglecpp.errors import ContextFullError, InvalidTypeError, TemplateError, UnsupportedError

if TYPE_CHECKING:
    from eaglecpp.engine.infill import Infill
    from eaglecpp.engine.vocabulary import Vocabulary
    from eaglecpp.opening.find import ModelFiles

# Matches texts that may be control tokens. The lookahead also finds a control token inside another match.
_CONTROL = re.compile(r"(?=(<\|[^<>|]+\|>|\[/?[A-Z_]+\]|<[^<>]+>|｜\w+｜|\]<\]\w+\[>\[))")
_log = logging.getLogger("eaglecpp.chat")
_MARK = "probes9x"  # Text of a probe message. Only a malicious template would change it.
Known = Callable[[Rendered], list[int] | None]
"""Function that returns the tokens of a prompt, or None if the prompt must be tokenized."""
_ROOM = 1024  # tokens reserved for an answer without `max_tokens`


def answer_room(max_tokens: int, n_ctx: int) -> int:
    """Returns the number of tokens that a shortened prompt leaves for its answer."""
    return max(1, min(max_tokens if max_tokens >= 0 else _ROOM, n_ctx // 4))


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation, or a text without a template, and its tokens.

    tools:      tools that the answer may call
    describes: the system prompt describes the tools and the format of calls, because the template does not
    has_form:   see `PromptOptions`
    n_left_out: number of messages left out to make room
    notices:    notices about parts that were moved within the conversation
    """

    rendered: Rendered
    tokens: list[int] = field(repr=False)
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    describes: bool = False
    has_form: bool = False
    n_left_out: int = 0
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PromptOptions:
    """Options for turning messages into a prompt.

    think:    None = the template's default; a bool or a level such as "high"
    has_form: a grammar applies to the answer, so a thought comes first only if `think` asks for a thought
    template_values: values for variables of the template
    known:    function that returns the tokens of a prompt that continues a known text, so that this text is
        not tokenized again
    """

    tools: Sequence[Mapping[str, Any]] = ()
    think: bool | str | None = None
    has_form: bool = False
    template_values: Mapping[str, Any] = field(default_factory=dict)
    known: Known | None = None


DEFAULT = PromptOptions()


class ChatCodec:
    """Converter of messages to prompts, and of answers to messages, for an opened model. Requests do not
    change this object.

    model:         the model's files, with its template, system prompt and messages
    gguf_template: function that returns the template in the target's file, "" for a file without a template
    """

    def __init__(self, vocabulary: Vocabulary, model: ModelFiles, gguf_template: Callable[[], str]) -> None:
        self._vocabulary = vocabulary
        self._model = model
        self._gguf_template = gguf_template
        # the original, if this object is a copy with another template
        self._base: ChatCodec | None = None

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template. For a model without a template, it renders the bare prompt."""
        has_token, (bos, eos) = self._vocabulary.has_token, self._vocabulary.border_texts
        return self._model.chat_template(
            gguf=self._gguf_template(), has_token=has_token, bos_text=bos, eos_text=eos
        )

    def with_template(self, template: str | ChatTemplate | None) -> ChatCodec:
        """Returns a copy with another template, in Jinja or Go's language. For None, returns this object."""
        if template is None:
            return self
        if isinstance(template, str):
            bos_text, eos_text = self._vocabulary.border_texts
            template = ChatTemplate.choose(modelfile=template, bos_text=bos_text, eos_text=eos_text)
        other = ChatCodec(self._vocabulary, self._model, self._gguf_template)
        other.template, other._base = template, self
        return other

    def require_template(self) -> None:
        """Raises UnsupportedError if the model has no template, so that its template is only guessed from the
        vocabulary.
        """
        if not self.template.source and self._model.modelfile.settings.chat_template == "auto":
            raise UnsupportedError(
                f"{self._model.target.name} has no chat template (tokenizer.chat_template): it is probably a "
                "base model. Use generate(), or pass template="
            )

    # Rendering messages as a prompt

    def conversation(self, messages: Sequence[Any] = (), system: str | None = None) -> Conversation:
        """Returns a conversation with the model's system prompt and the model's messages, followed by the
        given messages.

        A leading system message, or `system`, replaces the model's system prompt. Raises InvalidTypeError and
        InvalidValueError.
        """
        turns = lead_system(_checked(messages))
        if system is None:
            has_own = bool(turns) and turns[0].role == Role.SYSTEM
            system = turns.pop(0).content if has_own else self._model.modelfile.system
        return Conversation(system or "", self._model.modelfile.messages, turns)

    def render(
        self, messages: Sequence[Message], options: PromptOptions = DEFAULT
    ) -> tuple[Rendered, Accepted]:
        """Returns the text of a prompt, and the messages in the form that the template accepts. Raises
        TemplateError, and UnsupportedError for images without a projector, or a template that prints no
        question.
        """
        images = {image_mark(data): data for message in messages for data in message.images}
        if images and self._vocabulary.projector is None:
            raise UnsupportedError(
                f"{self._model.target.name} was opened without a projector, so it cannot read images. Pass "
                "the model's projector with --mmproj (mmproj=)"
            )
        with rendered_together():
            template = self.template
            has_calls = any(message.tool_calls or message.role == Role.TOOL for message in messages)
            # `self._calls` is only read if needed, because finding the formats may probe another template.
            forms = self._calls if has_calls else (HERMES,)
            taken = accepted(messages, options.tools, template.takes, forms)
            try:
                rendered = self._rendered(template, taken, options)
            except TemplateError:
                if not taken.tools:
                    raise
                # Some templates cannot print some tools: Hermes 3 a parameter of type null.
                taken = accepted(messages, options.tools, replace(template.takes, tools=False), forms)
                rendered = self._rendered(template, taken, options)
            head = taken.messages[0] if taken.messages else None
            if head is not None and head.role == Role.SYSTEM and head.content.strip() not in rendered.text:
                taken, rendered = self._with_system(template, taken, rendered, options)
        for notice in taken.notices:
            _log.info("%s: %s", self._model.target.name, notice)
        return (replace(rendered, images=images) if images else rendered), taken

    def _rendered(self, template: ChatTemplate, taken: Accepted, options: PromptOptions) -> Rendered:
        return template.render(
            taken.messages,
            tools=taken.tools,
            think=options.think,
            answers=options.has_form,
            values=options.template_values,
        )

    def _with_system(
        self, template: ChatTemplate, taken: Accepted, rendered: Rendered, options: PromptOptions
    ) -> tuple[Accepted, Rendered]:
        """Adds the system message to the prompt if the template left it out. Some templates leave the system
        message out of some conversations.

        A template may change a text, so the check renders a mark instead of the system message.
        """
        head, *others = taken.messages
        marked = replace(taken, messages=[replace(head, content=_MARK), *others])
        if _MARK in self._rendered(template, marked, options).text:
            return taken, rendered
        notice = "the chat template omits this system prompt, so it is put before the first question"
        folded = replace(taken, messages=fold_system(taken.messages), notices=(*taken.notices, notice))
        return folded, self._rendered(template, folded, options)

    def prompt(
        self, messages: Sequence[Message], *, n_ctx: int | None = None, options: PromptOptions = DEFAULT
    ) -> ChatPrompt:
        """Returns the prompt of exactly these messages. Raises ContextFullError if the prompt leaves no room
        for an answer in `n_ctx` tokens (0 = the engine's context, None = do not check).
        """
        rendered, taken = self.render(messages, options)
        tokens = options.known(rendered) if options.known is not None else None
        if tokens is None:
            tokens = self._vocabulary.tokenize_images(
                rendered.text, rendered.images, add_bos=not rendered.has_bos, n_ctx=n_ctx
            )
        return ChatPrompt(
            rendered, tokens, options.tools, taken.describes, options.has_form, notices=taken.notices
        )

    def fitting(
        self, conversation: Conversation, *, n_ctx: int, max_tokens: int, options: PromptOptions = DEFAULT
    ) -> ChatPrompt:
        """Returns the prompt of a conversation. If the conversation does not fit, leaves out the oldest
        exchanges.

        The prompt (with tools) and the room for an answer must fit in `n_ctx` tokens. The room for an answer
        is `max_tokens`, but at most a quarter of the context.
        """
        prompts: dict[int, ChatPrompt] = {}

        def count(messages: Sequence[Message]) -> int:
            try:
                prompt = self.prompt(messages, n_ctx=n_ctx, options=options)
            except ContextFullError:
                return n_ctx + 1
            prompts[len(messages)] = prompt
            return len(prompt.tokens)

        with rendered_together():
            conversation.fit(count, n_ctx, answer_room(max_tokens, n_ctx))
            messages = conversation.prompt()
            prompt = prompts.get(len(messages)) or self.prompt(messages, n_ctx=n_ctx, options=options)
            return replace(prompt, n_left_out=conversation.n_left_out)

    def infill(self, gap: Infill, n_tokens_max: int = 0) -> ChatPrompt:
        """Returns a prompt whose answer fills the gap between two texts, with the infill tokens of the
        target.

        n_tokens_max: as in `Infill.tokens`. Raises UnsupportedError if the target has no infill tokens, or if
        the request has a template.
        """
        if self._base is not None:
            raise UnsupportedError("infill does not use a chat template; remove the template")
        return ChatPrompt(Rendered("", has_bos=False), gap.tokens(self._vocabulary, n_tokens_max))

    # Reading an answer as a message

    @cached_property
    def tags(self) -> Layout | None:
        """The layout of a thinking model's answers; None for a model that does not think."""
        return thinking_tags(self._layout)

    @cached_property
    def _layout(self) -> Layout | None:
        """The layout of the model's answers."""
        return self.template.layout or (self._base._layout if self._base is not None else None)

    def grammar(self, prompt: ChatPrompt, grammar: str, think: bool | str | None) -> str:
        """Returns a grammar for the whole answer, including the thought. grammar: grammar for the text after
        the thought.
        """
        begins = prompt.rendered.begins
        if not think or self.tags is None or begins == "answer":
            return grammar
        return behind_thought(grammar, self.tags, begins)

    def without_thought(self, prompt: ChatPrompt) -> ChatPrompt:
        """Returns the prompt. If the prompt ends inside a thought, closes this thought."""
        rendered = prompt.rendered
        if self.tags is None or rendered.begins != "thought":
            return prompt
        text = self.tags.closing(rendered.text)
        tokens = [*prompt.tokens, *self._vocabulary.tokenize(text, add_bos=False)]
        return replace(
            prompt, rendered=replace(rendered, text=rendered.text + text, begins="answer"), tokens=tokens
        )

    def think_budget(self, prompt: ChatPrompt, n_max: int) -> Callable[[], ThinkBudget] | None:
        """Returns a function that creates a limit of `n_max` tokens for the thinking of one answer. Returns
        None if `n_max` is -1 or the model does not think.
        """
        if n_max < 0 or self.tags is None:
            return None
        rendered = prompt.rendered
        return partial(ThinkBudget, n_max, self.tags, rendered.begins, rendered.text)

    def reader(self, prompt: ChatPrompt) -> AnswerReader:
        """Returns a reader of the answer to a prompt. The reader finds calls of the prompt's tools in the
        model's formats, and in the format that the prompt describes.
        """
        formats: Sequence[CallFormat] = ()
        if prompt.tools:
            formats = (*self._calls, HERMES) if prompt.describes else self._calls
        may_be_bare = self.tags is not GPT_OSS or prompt.has_form
        reader = Reader(self._layout, prompt.rendered.begins, formats, _schemas(prompt), may_be_bare)
        marks = self._call_marks if prompt.tools else self._think_marks
        return AnswerReader(self._vocabulary.token_to_piece, reader, marks)

    @cached_property
    def _calls(self) -> tuple[CallFormat, ...]:
        """Formats of tool calls: the template's formats. If the template has none, the format whose mark is
        in the vocabulary, else the format of Hermes.
        """
        if self.template.calls:
            return self.template.calls
        if self._base is not None:
            return self._base._calls
        has_token = self._vocabulary.has_token
        known = (form for form in KNOWN if form.open.startswith(("<", "[")) and has_token(form.open))
        return (next(known, HERMES),)

    @cached_property
    def _think_marks(self) -> dict[int, str]:
        """Texts of the control tokens in the tags around thinking, by token id."""
        tags = self._layout
        text = tags.open + tags.close + tags.after + tags.plain + tags.marks if tags else ""
        return self._vocabulary.control_tokens(_CONTROL.findall(text))

    @cached_property
    def _call_marks(self) -> dict[int, str]:
        """Texts of the control tokens in the tags around thinking and calls, by token id."""
        text = "".join(one.open + one.close + one.printed for one in (*self._calls, HERMES))
        return self._think_marks | self._vocabulary.control_tokens(_CONTROL.findall(text))


def _schemas(prompt: ChatPrompt) -> Tools:
    """Returns the parameter schema of each tool, by the tool's name."""
    functions = [tool.get("function", tool) for tool in prompt.tools]
    schemas = {str(one.get("name", "")): one.get("parameters") for one in functions}
    return {name: schema if isinstance(schema, Mapping) else {} for name, schema in schemas.items()}


def _checked(messages: Sequence[Any]) -> list[Message]:
    is_list = isinstance(messages, Iterable) and not isinstance(messages, str | bytes | Mapping)
    turns: list[Any] = list(messages) if is_list else [messages]
    wrong = next((turn for turn in turns if not (is_list and isinstance(turn, Message | Mapping))), None)
    if is_list and wrong is None:
        return [turn if isinstance(turn, Message) else Message.from_dict(turn) for turn in turns]
    raise InvalidTypeError(
        'expected a list of messages such as [{"role": "user", "content": "Hello"}], found '
        f"{'a list with ' if is_list else ''}{type(wrong).__name__} {str(wrong)[:40]!r}"
    )
