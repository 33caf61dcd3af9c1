# SPDX-License-Identifier: MIT
"""`Session`: one conversation, with its own slot in the caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from eaglecpp.chat.conversation import Conversation, PromptMemory
from eaglecpp.chat.message import Message
from eaglecpp.engine.native import NativeSequence
from eaglecpp.engine.request import GenerationRequest, ResolvedRequest, Shared
from eaglecpp.engine.slots import HostCache, Slots
from eaglecpp.engine.stream import Stream
from eaglecpp.engine.vocabulary import Prompt
from eaglecpp.results import Completion

if TYPE_CHECKING:
    from eaglecpp.options.typed import ChatKeywords, GenerateKeywords

MessageList = Sequence["Message | Mapping[str, Any]"]
"""Messages, or {"role", "content"} dicts."""


class Talking:
    """Methods for generation, which `Session` and `Engine` share. `Engine` calls them on its default
    session.
    """

    @property
    def default_session(self) -> Session:
        """The session that the methods of this class use."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the session or the engine. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def generate(self, prompt: Prompt, **options: Unpack[GenerateKeywords]) -> Completion:
        """Completes `prompt` and returns the whole result. Takes the arguments of `stream`."""
        return self.stream(prompt, **options).finish()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateKeywords]) -> Stream:
        """Completes `prompt`, one `Chunk` per round.

        `prompt`: text (str, or bytes in UTF-8), tokenized with special tokens, and with a BOS token if the
            model wants a BOS token and the text does not begin with it; or token ids, used unchanged.
            `sampling` and
        `**options`: see `SamplingOptions`; the defaults are the engine's options. `strategy` and `exact`
            ("auto", "on", "off"; see `DraftOptions`) override the engine's own. `grammar`, `json_schema`,
            `response_format`: at most one of these three, see `eaglecpp.engine.grammar`.
        `on_prefill(n_done, n_prompt)` is called after each part of the prompt except the last, so never for a
        short prompt. `stop_when(tokens)` is called after each token with the list of all generated tokens,
        which the function must not change; a result of True ends the generation.
        `utf8_errors`: handling of bytes that are not UTF-8, "replace" (U+FFFD) or "ignore". `suffix`: the
        answer goes between `prompt` (a str) and this text. `cache_prompt=False`: compute the whole prompt,
        even if the caches hold its beginning. `log_plan`: record the planner's decision of every round as a
        line in `Completion.plan_log`.

        Raises `ContextFullError`, `GrammarError`, `EngineBusyError`, and `TypeError`/`ValueError` for misuse,
        all before the model runs.
        """
        session = self.default_session
        return session.begin(session.shared.resolve(GenerationRequest.of(options, prompt=prompt)))

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
        """Answers a conversation. `messages`: dicts {"role", "content"}, which the model's chat template
        turns into a prompt.

        `template`, `tools`, `think`: see `Engine.chat_prompt`. The other arguments are those of `stream`.
        Raises `UnsupportedError` if neither the model nor the call has a template.
        """
        running = self.default_session.answer(messages, options)
        return running if stream else running.finish()

    @property
    def tokens(self) -> list[int]:
        """Tokens committed in the conversation, prompt and generated. All tokens but the last have been
        evaluated.
        """
        return self.default_session.slot.tokens

    def clear(self) -> None:
        """Forgets the conversation, so that the next prompt reuses none of its tokens."""
        self.default_session.slot.clear()
        self.default_session.memory.clear()


class Session(Talking):
    """A conversation with its own slot in the KV caches. A prompt reuses the longest common prefix with the
    previous prompt and answer.

    `Engine.session()` opens a session; the engine's own methods use a default session. A session runs one
    generation at a time. Starting another generation ends the previous generation, even if another thread
    runs the previous generation. It raises `EngineBusyError` while another thread is in the middle of a
    round.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.slot = NativeSequence(shared.native)
        self.memory = PromptMemory(shared.vocabulary, lambda: shared.native.get().n_ctx)

    @property
    def default_session(self) -> Session:
        return self

    def begin(self, request: ResolvedRequest) -> Stream:
        """Starts a resolved generation. If the conversation continues an earlier prompt and its answer, the
        new prompt begins with exactly the tokens of the earlier prompt and answer, if they fit.
        """
        is_chat, prompts, prompt = request.source.messages is not None, self.shared.prompts, request.prompt
        tokens = (is_chat and self.memory.continued(prompt.rendered)) or prompt.tokens
        request = replace(request, prompt=replace(prompt, tokens=tokens))
        if prompts is not None:
            slots, fetched = Slots([self.slot], HostCache(0, prompts)), None
            if request.source.cache_prompt:
                fetched = prompts.fetch(tokens, slots.n_held(tokens)).result()
            slots.find(tokens, fetched)
        running = Stream(self.slot, self.shared, request)
        running.notices = prompt.notices

        def ended(result: Completion) -> None:
            if is_chat:
                self.memory.remember(prompt.rendered, result)
            if prompts is not None:
                prompts.keep(self.slot)

        running.on_end = ended
        return running

    def answer(self, messages: Conversation | MessageList, options: Mapping[str, Any], **rest: Any) -> Stream:
        """Starts the answer to a conversation, as `chat` with `stream=True` does. rest: fields of
        `GenerationRequest`.
        """
        what = {"messages": messages, "known": self.memory.continued, **rest}
        return self.begin(self.shared.resolve(GenerationRequest.of(options, **what)))

    def close(self) -> None:
        """Releases the conversation's slot in the caches. A second call does nothing."""
        if self.shared.prompts is not None and not self.slot.closed:
            self.shared.prompts.keep(self.slot, at_last=True)
        self.slot.close()
