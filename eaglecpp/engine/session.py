# SPDX-License-Identifier: MIT
"""`Session`: one conversation, with its own place in the caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from eaglecpp.chat.conversation import PromptMemory
from eaglecpp.engine.request import Answering, Request, Shared, make_request
from eaglecpp.engine.sequence import NativeSequence
from eaglecpp.engine.stream import Stream
from eaglecpp.engine.vocabulary import Prompt
from eaglecpp.results import Completion

if TYPE_CHECKING:
    from typing import Unpack

    from eaglecpp.chat.conversation import Conversation
    from eaglecpp.chat.message import Message
    from eaglecpp.options.typed import ChatKeywords, GenerateKeywords

__all__ = ["MessageList", "Session"]

MessageList = Sequence["Message | Mapping[str, Any]"]
"""Messages, or {"role", "content"} dicts."""


class Session:
    """A conversation with its own place in the KV caches: prompts that begin like the last one are cheap.

    Get one from `Engine.session()`; the engine's own methods use a default one. One generation at a time:
    starting another ends the one before, whichever thread started it, or raises `EngineBusyError` if another
    thread is in the middle of a round. With `Engine.open(wait=True)` it waits instead, until that generation
    or its thread has ended.
    """

    def __init__(self, shared: Shared, on_close: Callable[[Session], None] = lambda session: None) -> None:
        self._shared = shared
        self._sequence = NativeSequence(shared.native)
        self.memory = PromptMemory(shared.vocabulary)
        self._on_close = on_close

    def generate(self, prompt: Prompt, **options: Unpack[GenerateKeywords]) -> Completion:
        """Completes `prompt` and returns the whole result; arguments as `stream`."""
        return self.stream(prompt, **options).finish()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateKeywords]) -> Stream:
        """Completes `prompt`, one `Chunk` per round.

        `prompt`: text (str, or bytes in UTF-8), tokenized with special tokens, and with a BOS token if the
        model wants one and the text does not begin with it; or token ids, used unchanged. `sampling` and
        `**options`: see `SamplingOptions`; the defaults are the engine's. `strategy` overrides the
        engine's, and so does `exact` ("auto", "on", "off"; see `DraftOptions`). `grammar`, `json_schema`,
        `response_format`: at most one, see `eaglecpp.engine.grammar`.
        `on_prefill(n_done, n_prompt)` is called while the prompt is read. `stop_when(tokens)` is called after
        each token with all generated ones; True ends the generation. `utf8_errors`: what to do with bytes
        that are not UTF-8, "replace" (U+FFFD) or "ignore". `suffix`: the answer goes between a `prompt` that
        is a str and this text, see `Engine.infill_prompt`. `cache_prompt=False`: all of the prompt is
        computed, even if the caches hold its beginning.

        `log_plan`: record every round's decision, one line each, in `Completion.plan_log`.

        Raises `ContextFullError`, `GrammarError`, `EngineBusyError`, and `TypeError`/`ValueError` for misuse,
        all before anything runs.
        """
        return self.begin(make_request(self._shared, prompt, **options))

    def begin(self, request: Request) -> Stream:
        """Starts a generation that was checked."""
        return Stream(self._sequence, self._shared, request)

    @overload
    def chat(
        self, messages: MessageList, *, stream: Literal[False] = False, **options: Unpack[ChatKeywords]
    ) -> Completion: ...
    @overload
    def chat(
        self, messages: MessageList, *, stream: Literal[True], **options: Unpack[ChatKeywords]
    ) -> Stream: ...
    def chat(
        self, messages: MessageList, *, stream: bool = False, **options: Unpack[ChatKeywords]
    ) -> Completion | Stream:
        """Answers a conversation: `messages` ({"role", "content"} each) through the model's chat template.

        `template`, `tools`, `think`: see `Engine.chat_prompt`; other arguments as `stream`. Raises
        `UnsupportedError` if the model has no template and none is given.
        """
        running = self.begin_answer(self._shared.chat_request(messages, options, self.memory))
        return running if stream else running.finish()

    def answer_fitting(self, conversation: Conversation, options: dict[str, Any]) -> Stream:
        """Answers a conversation, out of which old messages are left if it is too long; options as `chat`."""
        rest = dict(options)
        chat, of_prompt = self._shared.chat_with(rest)
        sampling = rest.get("sampling") or self._shared.sampling
        max_tokens = rest.get("max_tokens", sampling.max_tokens)
        n_ctx = self._shared.native.get().n_ctx
        prompt = chat.fitting(conversation, self.memory, n_ctx=n_ctx, max_tokens=max_tokens, **of_prompt)
        return self.begin_answer(self._shared.answering(chat, prompt, rest))

    def begin_answer(self, answering: Answering) -> Stream:
        """Starts an answer that was checked, with the tokens of this conversation's past where they fit. A
        prompt that continues an earlier one and its answer then has exactly the tokens of that answer.
        """
        rendered, request = answering.prompt.rendered, answering.request
        tokens = self.memory.continued(rendered)
        if tokens is not None and len(tokens) < self._shared.native.get().n_ctx:
            request = replace(request, prompt=tokens)
        running = self.begin(request)
        running.on_end = lambda result: self.memory.remember(rendered, result)
        return running

    @property
    def tokens(self) -> list[int]:
        """Tokens committed in this conversation: prompt and generated."""
        return self._sequence.tokens

    def clear(self) -> None:
        """Forgets the conversation; the next prompt reuses nothing of it."""
        self._sequence.clear()
        self.memory.clear()

    def close(self) -> None:
        """Returns the conversation's place to the engine. A second call does nothing."""
        self._sequence.close()
        self._on_close(self)

    def __repr__(self) -> str:
        return f"<Session {self._sequence.number}{', closed' if self._sequence.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
