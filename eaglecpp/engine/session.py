# SPDX-License-Identifier: MIT
"""One conversation (`Session`) and one running generation (`Stream`).

A stream drives the native engine one round per `next()`, turns tokens into text, finds stop strings and
counts. Whatever ends it, be it the model, an exception, Ctrl+C, `close()` or being forgotten, the native
generation is ended and what was committed stays for prefix reuse. Sampling, drafting and verification are
native; nothing here touches a logit.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from eaglecpp._extension import core
from eaglecpp.engine.detokenize import Detokenizer
from eaglecpp.engine.grammar import resolve_grammar
from eaglecpp.engine.params import generate_params
from eaglecpp.engine.synth import synth_rates
from eaglecpp.errors import EagleError, EngineBusyError
from eaglecpp.options import SamplingOptions, Strategy, split
from eaglecpp.results import Chunk, Completion, FinishReason, Timings, TokenLogprob

if TYPE_CHECKING:
    from eaglecpp.engine import Engine

__all__ = ["Prompt", "Session", "Stream"]

Prompt = str | bytes | Sequence[int]
_POLL_S = 0.005  # of a thread that waits; short waits, so that Ctrl+C is heard


@dataclass(frozen=True)
class _Request:
    """One generation, checked and ready to start."""

    prompt: list[int]
    sampling: SamplingOptions
    seed: int
    strategy: Strategy
    plan: Mapping[str, Any]
    log_plan: bool
    replay: tuple[str, ...]
    synth_rates: tuple[float, ...]
    on_prefill: Callable[[int, int], None] | None
    stop_when: Callable[[list[int]], bool] | None
    utf8_errors: str


class Session:
    """A conversation with its own place in the KV caches: prompts that begin like the last one are cheap.

    Get one from `Engine.session()`; the engine's own methods use a default one. One generation at a time:
    starting another ends the one before, whichever thread began it; a round that another thread is in the
    middle of raises `EngineBusyError`. With `Engine.open(wait=True)` both wait instead, until that generation
    has ended or its thread has.
    """

    def __init__(self, engine: Engine, sequence: int) -> None:
        self._engine = engine
        self._sequence = sequence
        self._generation = 0
        self._running_in: int | None = None
        self._beginning = threading.Lock()
        self._closed = False

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Completes `prompt` and returns the whole result; arguments as `stream`."""
        with self.stream(prompt, **options) as stream:
            for _ in stream:
                pass
            return stream.completion()

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingOptions | None = None,
        strategy: str | Strategy | None = None,
        grammar: Any = None,
        json_schema: str | Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        stop_when: Callable[[list[int]], bool] | None = None,
        utf8_errors: str = "replace",
        log_plan: bool = False,
        replay: Sequence[str] | None = None,
        spec_synth_rates: str | Sequence[float] | None = None,
        spec_synth_len: float | None = None,
        **options: Any,
    ) -> Stream:
        """Completes `prompt`, one `Chunk` per round.

        `prompt`: text (str, or bytes in UTF-8), tokenized with special tokens and a BOS token where the model
        wants one and the text does not begin with it; or token ids, taken as they are. `sampling` and
        `**options`: see `SamplingOptions`; what is not given is the engine's. `strategy` overrides the
        engine's. `grammar`, `json_schema`, `response_format`: at most one, see `eaglecpp.engine.grammar`.
        `on_prefill(n_done, n_prompt)` is called while the prompt is read. `stop_when(tokens)` is called after
        each token with all generated ones; True ends the generation. `utf8_errors`: what becomes of bytes
        that are not UTF-8, "replace" (U+FFFD) or "ignore".

        `log_plan`: keep every round's decision, one line each, in `Completion.plan_log`; such a list given as
        `replay` is followed in place of a strategy, so that a run with the same prompt, seed and options is
        repeated with the same batches. `spec_synth_rates`, `spec_synth_len`: accept drafts by lot, see
        `eaglecpp.engine.synth`; the text is then not the target's.

        Raises `ContextFullError`, `GrammarError`, `EngineBusyError`, and `TypeError`/`ValueError` for misuse,
        all before anything runs.
        """
        chosen = self._sampling(sampling, options, resolve_grammar(grammar, json_schema, response_format))
        wanted = self._engine.strategy if strategy is None else Strategy.parse(strategy)
        resolved, why = self._engine.resolve(wanted)
        lines = self._replay(replay)
        request = _Request(
            prompt=self._engine.prompt_tokens(prompt),
            sampling=chosen,
            seed=random.getrandbits(31) if chosen.wants_random_seed else int(chosen.seed or 0),
            strategy=resolved,
            plan={"strategy": "replay", "why": "a logged plan"}
            if lines
            else {"strategy": str(resolved), "why": why},
            log_plan=log_plan,
            replay=lines,
            synth_rates=synth_rates(spec_synth_rates, spec_synth_len, resolved),
            on_prefill=on_prefill,
            stop_when=stop_when,
            utf8_errors=utf8_errors,
        )
        return Stream(self, request)

    @overload
    def chat(
        self, messages: Sequence[Any], *, stream: Literal[False] = False, **options: Any
    ) -> Completion: ...
    @overload
    def chat(self, messages: Sequence[Any], *, stream: Literal[True], **options: Any) -> Stream: ...
    def chat(self, messages: Sequence[Any], *, stream: bool = False, **options: Any) -> Completion | Stream:
        """Answers a conversation: `messages` ({"role", "content"} each) through the model's chat template.

        `template`, `tools`, `think`: see `Engine.chat_prompt`; other arguments as `stream`. Raises
        `UnsupportedError` when the model has no template and none is given.
        """
        return self.answer(messages, stream, options)

    def answer(self, messages: Sequence[Any], stream: bool, options: dict[str, Any]) -> Completion | Stream:
        """`chat` with its arguments as values."""
        of_prompt = {name: options.pop(name) for name in ("template", "tools", "think") if name in options}
        prompt = self._engine.chat_prompt(messages, **of_prompt)
        return self.stream(prompt, **options) if stream else self.generate(prompt, **options)

    @property
    def tokens(self) -> list[int]:
        """Tokens committed in this conversation: prompt and generated."""
        with self._calling() as native:
            return native.tokens(self._sequence)

    def clear(self) -> None:
        """Forgets the conversation; nothing is reused by the next prompt."""
        with self._calling() as native:
            native.clear(self._sequence)

    def close(self) -> None:
        """Gives the conversation's place back to the engine. A second call does nothing."""
        if not self._closed and not self._engine.closed:
            with self._calling() as native:
                native.close_sequence(self._sequence)
            self._engine.forget(self)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _sampling(
        self, sampling: SamplingOptions | None, options: dict[str, Any], grammar: str | None
    ) -> SamplingOptions:
        (given,) = split(options, SamplingOptions)
        if grammar is not None:
            given["grammar"] = grammar
        return replace(sampling or self._engine.sampling, **given)

    def _replay(self, lines: Sequence[str] | None) -> tuple[str, ...]:
        if lines is None:
            return ()
        if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
            raise TypeError("replay must be a list of lines, as in Completion.plan_log")
        if not lines:
            raise ValueError("replay: the plan has no rounds; it must come from a run with log_plan")
        if not self._engine.has_draft:
            raise ValueError("replay needs a drafter: open the engine with draft=...")
        return tuple(lines)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[core.Engine]:
        if self._closed:
            raise ValueError("this session is closed")
        with self._engine.calling() as native:
            yield native

    def _begin(self, request: _Request) -> tuple[int, int]:
        """Starts natively; returns the number of this generation and how many prompt tokens were reused."""
        with self._turn(), self._calling() as native:
            params = generate_params(request.sampling, request.seed, request.strategy)
            params.log_plan, params.replay = request.log_plan, list(request.replay)
            params.synth_rates = list(request.synth_rates)
            reused = native.begin(self._sequence, request.prompt, params)
            self._generation += 1
            self._running_in = threading.get_ident()
            return self._generation, reused

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """With `wait`: holds until no other thread has a generation open here."""
        if not self._engine.waits:
            yield
            return
        while not self._beginning.acquire(timeout=_POLL_S):
            pass
        try:
            while self._running_in not in (None, threading.get_ident()) and any(
                thread.ident == self._running_in for thread in threading.enumerate()
            ):
                time.sleep(_POLL_S)
            yield
        finally:
            self._beginning.release()

    def _step(self, generation: int) -> core.StepResult:
        with self._calling() as native:
            self._require_current(generation)
            return native.step([self._sequence])[0]

    def _end(self, generation: int, n_taken: int) -> dict[str, Any]:
        """Ends the native generation, of which n_taken tokens were used; returns its counters. Not for a
        generation that was taken over.
        """
        self._require_current(generation)
        self._running_in = None  # even if the engine is busy now: the next `begin` ends it natively
        with self._calling() as native:
            native.end(self._sequence, n_taken)
            return native.timings(self._sequence)

    def _require_current(self, generation: int) -> None:
        if generation != self._generation:
            raise EngineBusyError(
                "a newer generation took this session over and ended this stream; use engine.session() for "
                "conversations that run side by side"
            )


class Stream(Iterator[Chunk]):
    """A running generation: iterate for chunks, `completion()` for the result so far, `close()` to stop
    early.

    `seed` is the one in use, `prompt_tokens` the prompt as token ids, `reused_n` how many of them needed no
    work.
    """

    def __init__(self, session: Session, request: _Request) -> None:
        self._open = False
        self._session = session
        self._request = request
        self._detokenizer = Detokenizer(request.sampling.stop, request.utf8_errors)
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._accepted: list[bool] = []
        self._logprobs: list[TokenLogprob] = []
        self._plan_log: list[str] = []
        self._stats = Timings(plan=request.plan, synth_rates=request.synth_rates)
        self._finish: FinishReason | None = None
        self._generation, self.reused_n = session._begin(request)
        self._open = True

    @property
    def seed(self) -> int:
        return self._request.seed

    @property
    def prompt_tokens(self) -> list[int]:
        return list(self._request.prompt)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if not self._open:
            raise StopIteration
        try:
            return self._take(self._next_round())
        except BaseException:
            self.close()
            raise

    def completion(self) -> Completion:
        """Everything generated so far. "cancelled" is the reason of a stream closed early or still
        running.
        """
        return Completion(
            text="".join(self._texts),
            tokens=list(self._tokens),
            accepted=list(self._accepted),
            finish_reason=self._finish or "cancelled",
            seed=self.seed,
            prompt_tokens=self.prompt_tokens,
            stats=self._stats,
            logprobs=list(self._logprobs),
            plan_log=list(self._plan_log),
        )

    def close(self) -> None:
        """Ends the generation where it is; text held back so far is added to `completion()`. Never raises."""
        if self._open:
            self._open = False
            self._texts.append(self._detokenizer.finish())
            # A session that was closed, taken over or is busy in another thread has ended, or will end, the
            # native generation itself: beginning another one always ends it first.
            with contextlib.suppress(EagleError, ValueError):
                self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _next_round(self) -> core.StepResult:
        """Runs prefill slices until a round gives tokens, or the end."""
        while True:
            result = self._session._step(self._generation)
            if result.phase == "prefill" and self._request.on_prefill is not None:
                self._request.on_prefill(result.n_prompt_done, result.n_prompt)
            if result.tokens or result.finish:
                return result

    def _take(self, result: core.StepResult) -> Chunk:
        first, first_text = len(self._tokens), len(self._texts)
        finish = self._take_tokens(result)
        if finish is not None:
            self._texts.append(self._detokenizer.finish())
            self._open = False
            self._finish = finish
            self._settle()
        return Chunk(
            text="".join(self._texts[first_text:]),
            tokens=self._tokens[first:],
            accepted=self._accepted[first:],
            logprobs=self._logprobs[first:],
            finish_reason=finish,
            stats=self._stats if finish is not None else None,
        )

    def _take_tokens(self, result: core.StepResult) -> FinishReason | None:
        """Takes the round's tokens one by one, so that the end never depends on how many came in one
        round.
        """
        finish: FinishReason | None = (
            "stop" if result.finish == "stop" else "length" if result.finish else None
        )
        for index, token in enumerate(result.tokens):
            self._tokens.append(token)
            self._accepted.append(result.accepted[index])
            if result.logprobs:
                entry = result.logprobs[index]
                self._logprobs.append(TokenLogprob(token, entry.logprob, list(entry.top)))
            if finish == "stop" and index == len(result.tokens) - 1:
                break
            self._texts.append(self._detokenizer.feed(self._session._engine.token_to_piece(token)))
            if self._detokenizer.stopped or self._asked_to_stop():
                return "stop"
        return finish

    def _asked_to_stop(self) -> bool:
        stop_when = self._request.stop_when
        return stop_when is not None and bool(stop_when(list(self._tokens)))

    def _settle(self) -> None:
        """Ends the native generation and books its counters."""
        raw = self._session._end(self._generation, len(self._tokens))
        plan = dict(self._request.plan)
        if self._session._engine.has_draft:
            says_why = plan["strategy"] == "auto"
            plan |= {name: fact for name, fact in raw["plan"].items() if says_why or name != "why"}
            if says_why and self._session._engine.chains_only:
                plan["why"] += f"; chains only: {self._session._engine.chains_only}"
            if raw["cut"] >= 0:
                plan["why"] += f"; {self._why_cut(raw['cut'])}"
        self._plan_log = raw["plan_log"]
        rates = self._request.synth_rates
        self._stats = Timings.from_raw(raw, predicted_n=len(self._tokens), plan=plan, synth_rates=rates)
        self._session._engine.book(self._stats)

    def _why_cut(self, n_nodes: int) -> str:
        """Why a strategy ran smaller than it is, or not at all."""
        exactness = self._session._engine.exactness
        if n_nodes == 0:
            return f"plain, to be exact: {exactness.reason or f'exact are batches of {exactness.rows} rows'}"
        return f"cut to {n_nodes} nodes, to be exact: exact are batches of {exactness.rows} rows"
