# SPDX-License-Identifier: MIT
"""Result dictionaries in the shape of `llama_cpp.Llama`, for `eaglecpp.llama`.

This module has plain functions that turn results into dicts. Key names and quirks follow
abetlen/llama-cpp-python: llama_cpp/llama.py (0.3.36). We add one key, `timings`, to a completion and to the
last chunk of a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from eaglecpp.results import FinishReason

if TYPE_CHECKING:  # type annotations of results
    from collections.abc import Callable, Iterator, Mapping
    from typing import Literal, NotRequired, Protocol, Unpack, overload

    from llama_cpp import llama_types

    Prompt = str | list[int]

    class Completed(llama_types.CreateCompletionResponse):  # type: ignore[misc]
        """A completion."""

        timings: dict[str, Any]

    class CompletionPart(llama_types.CreateCompletionResponse, total=False):  # type: ignore[misc, call-arg]
        """A chunk of a streamed completion. The last chunk has `timings`."""

        timings: dict[str, Any]

    class ChatCompleted(llama_types.CreateChatCompletionResponse):  # type: ignore[misc]
        """An answer of a chat."""

        timings: dict[str, Any]

    class ChatPartChoice(TypedDict):
        """The new part of an answer. Unlike llama_cpp's own type, this type allows an empty `delta`."""

        index: int
        delta: llama_types.ChatCompletionStreamResponseDelta
        logprobs: NotRequired[llama_types.ChatCompletionLogprobs | None]
        finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None

    class ChatPart(TypedDict):
        """A chunk of a streamed answer. The last chunk has `timings`."""

        id: str
        model: str
        object: Literal["chat.completion.chunk"]
        created: int
        choices: list[ChatPartChoice]
        timings: NotRequired[dict[str, Any]]

    class Completes(Protocol):
        """The type of `create_completion` and of calling the instance. args: the first of `Keywords`, in
        llama_cpp's order.
        """

        @overload
        def __call__(
            self, prompt: Prompt, *args: Any, stream: Literal[False] = False, **options: Unpack[Keywords]
        ) -> Completed: ...
        @overload
        def __call__(
            self, prompt: Prompt, *args: Any, stream: Literal[True], **options: Unpack[Keywords]
        ) -> Iterator[CompletionPart]: ...
        @overload
        def __call__(
            self, prompt: Prompt, *args: Any, stream: bool, **options: Unpack[Keywords]
        ) -> Completed | Iterator[CompletionPart]: ...


class Keywords(TypedDict, total=False):
    """Keyword arguments of `Llama.create_completion`."""

    suffix: str | None
    max_tokens: int | None
    temperature: float
    top_p: float
    min_p: float
    typical_p: float
    logprobs: int | None
    echo: bool
    stop: str | list[str] | None
    frequency_penalty: float
    presence_penalty: float
    repeat_penalty: float
    top_k: int
    seed: int | None
    tfs_z: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    model: str | None
    stopping_criteria: Callable[..., bool] | None
    logits_processor: Any
    grammar: Any
    logit_bias: Mapping[int, float] | None


def completes(function: Callable[..., Any]) -> Completes:
    """Gives the function the overloaded type `Completes`."""
    return function


def part_of(
    head: dict[str, Any],
    text: str,
    logprobs: dict[str, Any] | None = None,
    finish_reason: FinishReason | None = None,
) -> dict[str, Any]:
    """Returns one dictionary of a stream. head: the keys shared by all dictionaries of one completion."""
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
    return {**head, "choices": [choice]}
