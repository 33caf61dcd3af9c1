# SPDX-License-Identifier: MIT
"""Results of a generation: `Completion`, `Chunk` and their counters, as plain values.

`timings` uses llama.cpp's names where they exist. Definitions: The acceptance length is the number of tokens
per verification round, including the bonus token (1.0 without drafting). The acceptance rate is accepted
tokens / drafted tokens. The acceptance rate at a depth is the share of the rounds that reached this depth in
which the draft was accepted there.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, Self

from eaglecpp.errors import InvalidStateError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eaglecpp.chat.message import Message, ToolCall

FinishReason = Literal["stop", "length", "cancelled"]


class PlanReason(StrEnum):
    """The planner's reason for drafting or not drafting, as in `Timings.plan["reason"]`
    (native/algo/decision.h).
    """

    OFF = "off"
    ROOM = "room"
    CALIBRATING = "calibrating"
    OVER_BUDGET = "over_budget"
    ALL_REJECTED = "all_rejected"
    PAYS = "pays"
    FIXED = "fixed"
    INEXACT = "inexact"
    NO_MATCH = "no_match"
    REPLAY = "replay"


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one generated token under the target, before the sampling options are applied.
    `top`: the likeliest tokens with their log-probabilities.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


class LogprobLists:
    """Builds the `logprobs` of a completion in OpenAI's form, part by part.

    name:   function that returns the display text of a token
    piece:  function that returns the bytes of a token in the completion's text
    offset: number of characters before the completion
    errors: error mode with which the completion's text was decoded
    """

    def __init__(
        self, name: Callable[[int], str], piece: Callable[[int], bytes], offset: int, errors: str
    ) -> None:
        self._name = name
        self._piece = piece
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def of(self, entries: Sequence[TokenLogprob], n_top: int | None = None) -> dict[str, Any]:
        """Returns the lists for the next tokens. n_top: number of likeliest tokens to include, in addition to
        the generated token; None = all.
        """
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._piece(entry.token)))
        return {
            "tokens": [self._name(entry.token) for entry in entries],
            "text_offset": offsets,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [
                {self._name(token): value for token, value in entry.top[:n_top]}
                | {self._name(entry.token): entry.logprob}
                for entry in entries
            ],
        }


@dataclass(frozen=True)
class Timings:
    """Counters of one generation, or sums over several generations. Times are in milliseconds.

    `rounds`: forward passes of the target after the prefill. `tried_per_depth[d]`: rounds whose draft was
    checked at depth d + 1; `hits_per_depth[d]`: rounds in which the draft was accepted at this depth.
    `reused_n`: prompt tokens taken from the previous conversation. `loops`: the answer ends in a repetition.
    `peak_memory`: peak memory of the process so far, in bytes. `text_draft_n`, `text_draft_n_accepted`: the
    drafted tokens that came from the text itself, not from a drafter.

    `exact`: True if every token of this answer was computed bit for bit as in target-only decoding, so that
        the text is the same; False if not, or if this is unknown.

    `plan`: `strategy` and `why`. With "auto", `reason` is a `PlanReason` if most rounds did not draft, else
    "". If drafting was possible, `plan` also has `rounds`, `drafted_rounds` (with a verified draft) and
    `probes` (drafted, not verified), and means over the drafted rounds: `nodes`, `depth`, `expected_tokens`
    (including the bonus token), `expected_cost` (in target-only steps) and `speedup` (tokens in the time of
    one target-only step, without stalls). `expected_cost` and `speedup` are None before the first target-only
    step is measured.
    """

    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    text_draft_n: int = 0
    text_draft_n_accepted: int = 0
    rounds: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    host_ms: float = 0.0
    tried_per_depth: tuple[int, ...] = ()
    hits_per_depth: tuple[int, ...] = ()
    reused_n: int = 0
    exact: bool = True
    loops: bool = False
    peak_memory: int = 0
    plan: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any], **extra: Any) -> Timings:
        """Builds timings from the extension's counters. In `raw`, `accepted_per_depth` is a count and not a
        rate. extra: fields that override the counters.
        """
        known = {name: raw[name] for name in cls.__dataclass_fields__ if name in raw}
        known["tried_per_depth"] = tuple(raw.get("tried_per_depth", ()))
        known["hits_per_depth"] = tuple(raw.get("accepted_per_depth", ()))
        return cls(**(known | extra))

    @property
    def prompt_per_second(self) -> float:
        return _rate(self.prompt_n, self.prompt_ms)

    @property
    def predicted_per_second(self) -> float:
        return _rate(self.predicted_n, self.predicted_ms)

    @property
    def acceptance_length(self) -> float:
        """Tokens per round; 1.0 without drafting, 0.0 if no round has run."""
        return 1.0 + self.draft_n_accepted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were accepted; 0.0 if no token was drafted."""
        return self.draft_n_accepted / self.draft_n if self.draft_n else 0.0

    @property
    def accepted_per_depth(self) -> list[float]:
        """Acceptance rate at depth 1, 2, ..., among the rounds that reached this depth. Depths that were
        never reached are left out.
        """
        return [
            hits / tried
            for hits, tried in zip(self.hits_per_depth, self.tried_per_depth, strict=False)
            if tried
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns the `timings` object of the command line and the API; JSON-ready."""
        return {name: getattr(self, name) for name in _REPORTED} | {"plan": dict(self.plan)}

    def __add__(self, other: Timings) -> Timings:
        """Returns the sums of all counters, with the plan of `other` if it has one. The sum is exact if both
        operands are exact.
        """
        sums: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__dataclass_fields__
            if name not in ("tried_per_depth", "hits_per_depth", "exact", "loops", "peak_memory", "plan")
        }
        for name in ("tried_per_depth", "hits_per_depth"):
            pairs = zip_longest(getattr(self, name), getattr(other, name), fillvalue=0)
            sums[name] = tuple(a + b for a, b in pairs)
        sums["exact"], sums["loops"] = self.exact and other.exact, other.loops
        sums["peak_memory"] = max(self.peak_memory, other.peak_memory)
        return replace(self, **sums, plan=other.plan or self.plan)


_REPORTED = (
    "prompt_n", "prompt_ms", "prompt_per_second", "reused_n", "predicted_n", "predicted_ms",
    "predicted_per_second", "draft_n", "draft_n_accepted", "text_draft_n", "text_draft_n_accepted", "rounds",
    "acceptance_length", "accepted_per_depth", "draft_ms", "verify_ms", "exact", "loops",
    "peak_memory",
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A piece of an answer's text. is_thinking: True for thinking, False for the answer; is_accepted: the
    text was drafted and accepted.
    """

    text: str
    is_thinking: bool
    is_accepted: bool


Part = tuple[Literal["thinking", "content"], str] | tuple[Literal["call"], "ToolCall"]


@dataclass(frozen=True)
class Event:
    """A change of an answer. An answer is a list of blocks, and each block begins, grows and ends.

    index: number of the block; part: kind of the block, and the added text or, at the block's end, its whole
    text; is_last: True at the end of the last block
    """

    step: Literal["begin", "add", "end"]
    index: int
    part: Part
    is_last: bool = False


@dataclass(frozen=True)
class Chunk:
    """The result of one round of a stream, or of several fast rounds (`AsyncEngine`).

    `text` is the text that became final. It can be shorter or longer than the text of `tokens`, because
    incomplete characters and possible stop strings are held back. `accepted[i]`: `tokens[i]` was drafted. The
    last chunk has `finish_reason` and `timings`. In a chat, `pieces` is the text split into answer and
    thinking; `events` is the same text as blocks of thinking, content and tool calls.
    """

    text: str
    tokens: list[int]
    accepted: list[bool]
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    timings: Timings | None = None
    pieces: list[Piece] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        """Text and calls that this round added to the blocks of a chat's answer."""
        return [event.part for event in self.events if event.step == "add"]


@dataclass(frozen=True)
class Completion:
    """A finished generation.

    `tokens` are all generated tokens in order, including a final end-of-generation token; `text` excludes
    that token and any stop string. `finish_reason`: "stop" (the model or a stop string), "length"
    (`max_tokens` or the context), "cancelled". `seed` is the seed used, even if it was drawn at random.
    `plan_log`: one line per round with the planner's decision, if requested. `stopped_by`: the stop string
    that ended the generation.
    """

    text: str
    tokens: list[int] = field(repr=False)
    accepted: list[bool] = field(repr=False)
    finish_reason: FinishReason
    seed: int
    prompt_tokens: list[int] = field(repr=False)
    timings: Timings = field(repr=False)
    logprobs: list[TokenLogprob] = field(default_factory=list, repr=False)
    plan_log: list[str] = field(default_factory=list, repr=False)
    stopped_by: str | None = field(default=None, repr=False)
    _message: Message | None = field(default=None, repr=False)

    @property
    def message(self) -> Message:
        """The answer of a chat as a message for the next call. `content` excludes the thinking and the tool
        calls; `text` includes both as the model wrote them. Raises InvalidStateError for a completion.
        """
        if self._message is None:
            raise InvalidStateError("a completion has only text; use chat() to get a message")
        return self._message

    @property
    def thinking(self) -> str:
        """The model's thinking before its answer, or ""."""
        return self._message.thinking if self._message is not None else ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the answer, with arguments as JSON values."""
        return self._message.tool_calls if self._message is not None else ()


READ_MS = 30.0  # rounds within this time share a chunk, because each chunk delays the next round by 1 ms


class AnswerStream(Iterator[Chunk]):
    """A running generation. Iterate over it for chunks. Leaving the `with` block ends the generation.

    on_end: called with the result, unless an error ended the generation; notices: notices about the prompt
    chunk_ms: milliseconds within which rounds of this process share a chunk; 0 = one round per chunk. The
        first token has its own chunk.
    """

    on_end: Callable[[Completion], None] | None = None
    notices: tuple[str, ...] = ()
    chunk_ms = 0.0
    is_open = False  # True until the stream has ended or was closed

    def completion(self) -> Completion:
        """Returns the result so far. `finish_reason` is "cancelled" if the generation is still running or was
        closed early.
        """
        raise NotImplementedError

    def close(self) -> Chunk:
        """Stops the generation. Returns a chunk with the text that was held back. Never raises."""
        raise NotImplementedError

    def finish(self) -> Completion:
        """Runs the generation to its end without streaming, so that each step may run several rounds."""
        self.chunk_ms = float("inf")
        with self:
            for _ in self:
                pass
            return self.completion()

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _rate(n: int, ms: float) -> float:
    return 1000.0 * n / ms if ms > 0 else 0.0


@dataclass(frozen=True, repr=False, eq=False)
class Embedding:
    """The vector of a text. vector: [n_values], or without pooling [n_tokens, n_values]; n_tokens: number of
    evaluated tokens, including tokens that the model adds; is_truncated: True if the text was truncated
    """

    vector: NDArray[np.float32]
    n_tokens: int
    is_truncated: bool = False

    def __repr__(self) -> str:
        cut = ", truncated" if self.is_truncated else ""
        return f"<Embedding of {self.n_tokens} tokens: {self.vector.shape[-1]} values{cut}>"
