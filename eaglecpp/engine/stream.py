# SPDX-License-Identifier: MIT
"""`Stream`: one running generation.

A stream runs the native engine one round per `next()`, turns tokens into text, finds stop strings and counts
tokens. When the stream ends (by the model, an exception, Ctrl+C, `close()` or garbage collection), the native
generation ends too. Its committed tokens stay in the caches for prefix reuse. Sampling, drafting and
verification are native.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace

if sys.platform == "win32":
    import psutil
else:  # imported here, because an open stream may end while the interpreter exits
    import resource

from eaglecpp._extension import core
from eaglecpp.chat.think_budget import ThinkBudget
from eaglecpp.engine.loops import TAIL, ends_in_a_loop, is_looping
from eaglecpp.engine.native import NativeSequence, Unique, step_together
from eaglecpp.engine.request import ResolvedRequest, Shared
from eaglecpp.engine.vocabulary import Detokenizer
from eaglecpp.errors import EagleError
from eaglecpp.results import READ_MS, AnswerStream, Chunk, Completion, FinishReason, Timings, TokenLogprob

# Maximum milliseconds of a native call for a generation without a stream. After the call, Python checks for
# stop strings and Ctrl+C.
UNWATCHED_MS = 100.0


class Stream(Unique, AnswerStream):
    """A running generation. Iterate over it for chunks; `completion()` returns the result so far, `close()`
    stops early.

    `seed` is the seed in use, `prompt_tokens` the prompt as token ids, `reused_n` the number of prompt tokens
    that were reused.
    """

    def __init__(
        self, sequence: NativeSequence, shared: Shared, request: ResolvedRequest, *, reads: bool = True
    ) -> None:
        """reads: True = the stream splits a chat's answer into pieces and events; False = the caller does
        this.
        """
        self._failed = False
        self._sequence = sequence
        self._shared = shared
        self._request = request
        self._reader = request.reader if reads else None
        self._detokenizer = Detokenizer(request.sampling.stop, request.source.utf8_errors)
        self._stopped_by: str | None = None
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._accepted: list[bool] = []
        self._logprobs: list[TokenLogprob] = []
        self._plan_log: list[str] = []
        self._finish: FinishReason | None = None
        self._budget = None if request.budget is None else request.budget()
        self.prompt_tokens = request.prompt.tokens
        self.reused_n = self._begin(request)
        self._timings = Timings(plan=request.plan, reused_n=self.reused_n)
        self.is_open = True

    def _begin(self, request: ResolvedRequest) -> int:
        """Starts the native generation of a request, or of the rest of an answer whose thinking was closed.
        Returns the number of reused tokens.
        """
        self._n_before, self._is_running = len(self._tokens), True
        self._generation, n_reused = self._sequence.begin(
            request.prompt.tokens, request.params(), request.sampler
        )
        return n_reused

    def _close_thought(self, budget: ThinkBudget) -> FinishReason | None:
        """Appends the text that closes the thinking, and continues the generation after this text. Returns
        "length" if the context or `max_tokens` leaves no room for an answer, else None.
        """
        self._timings = self._end()
        self._budget = None
        limit = self._request.sampling.max_tokens
        n_max = self._shared.native.get().n_ctx - len(self.prompt_tokens)
        n_max = n_max if limit < 0 else min(limit, n_max)
        for token in self._shared.vocabulary.tokenize(budget.closing(), add_bos=False):
            if len(self._tokens) >= n_max:
                return "length"
            self._append(token, is_accepted=False, entry=TokenLogprob(token, 0.0, []))
            self._texts.append(self._detokenizer.feed(self._shared.vocabulary.token_to_piece(token)))
            if self._detokenizer.stopped:
                return "stop"
        if len(self._tokens) >= n_max:
            return "length"
        tokens = [*self.prompt_tokens, *self._tokens]
        self._begin(self._request.behind_thought(tokens, len(self._tokens)))
        return None

    def _append(self, token: int, is_accepted: bool, entry: TokenLogprob | None) -> None:
        self._tokens.append(token)
        self._accepted.append(is_accepted)
        if entry is not None and self._request.sampling.n_probs:
            self._logprobs.append(entry)

    @property
    def unwatched_ms(self) -> float:
        """Milliseconds for which rounds may run before Python checks their tokens; 0 if a thinking budget has
        to be checked after each round, or if the target cannot roll back the tokens after a stop string
        or a repetition.
        """
        sampling = self._request.sampling
        # No model generates the other half of a tail within one call.
        may_loop = sampling.max_repeats > 0 and self.n_tokens > TAIL // 2
        stops = sampling.stop or self._request.source.stop_when is not None or may_loop
        if self._budget is not None or (stops and self._shared.native.chains_only):
            return 0.0
        return READ_MS if stops else UNWATCHED_MS  # rounds after a stop string are wasted

    @property
    def seed(self) -> int:
        return self._request.seed

    @property
    def n_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self._tokens)

    def __next__(self) -> Chunk:
        """Returns the next chunk. Processes slices of the prompt until a round generates tokens or the
        generation ends.
        """
        if not self.is_open:
            self._shared.after_answer()
            raise StopIteration
        for_ms = min(self.chunk_ms, self.unwatched_ms) if self._tokens else 0.0
        try:
            running = [(self._sequence, self._generation)]
            while not self._gave_tokens(result := step_together(running, for_ms)[0]):
                pass
            return self._take(result)
        except BaseException:
            self._failed = True
            self.close()
            raise

    def completion(self) -> Completion:
        """Returns the result so far. `finish_reason` is "cancelled" if the generation is still running or was
        closed early.
        """
        return Completion(
            text="".join(self._texts),
            tokens=list(self._tokens),
            accepted=list(self._accepted),
            finish_reason=self._finish or "cancelled",
            seed=self.seed,
            prompt_tokens=list(self.prompt_tokens),
            timings=self._timings,
            logprobs=list(self._logprobs),
            plan_log=list(self._plan_log),
            stopped_by=self._stopped_by or self._detokenizer.stopped_by,
            _message=None if self._reader is None else self._reader.message,
        )

    def close(self) -> Chunk:
        """Stops the generation. Returns a chunk with the text that was held back, which `completion()` then
        includes. Never raises.
        """
        chunk = Chunk("", [], [], finish_reason="cancelled")
        if self.is_open:
            self.is_open = False
            chunk = self._read(replace(chunk, text=self._detokenizer.finish()))
            self._texts.append(chunk.text)
            # The native generation may have ended already, because the session was closed or another
            # generation has replaced this one. If another thread is in the middle of a round, the next
            # generation ends this one first.
            with contextlib.suppress(EagleError, ValueError):
                self._settle()
                self._report_end()
        return chunk

    def _read(self, chunk: Chunk) -> Chunk:
        return chunk if self._reader is None else self._reader.read(chunk)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _gave_tokens(self, result: core.StepResult) -> bool:
        """Returns whether a step generated tokens or ended the generation. Reports the progress of the prompt
        to `on_prefill`.
        """
        if result.phase == "prefill" and self._request.source.on_prefill is not None:
            self._request.source.on_prefill(result.n_prompt_done, result.n_prompt)
        return bool(result.tokens or result.finish or result.error)

    def _chunk_of(self, result: core.StepResult) -> Chunk | BaseException | None:
        """Returns the chunk of a step, None for a step without tokens, or the error that ended this
        stream.
        """
        try:
            return self._take(result) if self._gave_tokens(result) else None
        except BaseException as error:  # `stop_when` may raise SystemExit, which is this request's error too
            self._failed = True
            self.close()
            return error

    def _take(self, result: core.StepResult) -> Chunk:
        if result.error is not None:
            raise result.error
        first, first_text = len(self._tokens), len(self._texts)
        finish = self._take_tokens(result)
        if finish is not None:
            self._texts.append(self._detokenizer.finish())
            self.is_open = False
            self._finish = finish
            self._settle()
        chunk = Chunk(
            text="".join(self._texts[first_text:]),
            tokens=self._tokens[first:],
            accepted=self._accepted[first:],
            logprobs=self._logprobs[first:],
            finish_reason=finish,
            timings=self._timings if finish is not None else None,
        )
        chunk = self._read(chunk)
        if finish is not None:
            self._report_end()
        return chunk

    def _take_tokens(self, result: core.StepResult) -> FinishReason | None:
        """Processes the round's tokens one by one, so that the end of the text never depends on the number of
        tokens in a round.
        """
        is_end = result.finish == "stop"
        finish: FinishReason | None = "stop" if is_end else "length" if result.finish else None
        stop_when, max_repeats = self._request.source.stop_when, self._request.sampling.max_repeats
        for index, token in enumerate(result.tokens):
            entry = None
            if result.logprobs:
                logprob = result.logprobs[index]
                entry = TokenLogprob(token, logprob.logprob, list(logprob.top))
            self._append(token, result.accepted[index], entry)
            if token in self._request.stop_tokens:
                self._stopped_by = self._request.stop_tokens[token]
                return "stop"
            if is_end and index == len(result.tokens) - 1:
                break
            self._texts.append(self._detokenizer.feed(self._shared.vocabulary.token_to_piece(token)))
            is_over = self._detokenizer.stopped or (stop_when is not None and stop_when(self._tokens))
            if is_over or ends_in_a_loop(self._tokens, max_repeats):
                return "stop"
            if self._budget is not None:
                piece = self._shared.vocabulary.token_to_piece(token, special=True)
                self._budget.take(piece.decode("utf-8", "replace"))
                if self._budget.is_spent:
                    return self._close_thought(self._budget)
        return finish

    def _end(self) -> Timings:
        """Ends the native generation. Returns the counters of the whole answer so far."""
        tokens, self._is_running = self._tokens, False
        raw = self._sequence.end(self._generation, len(tokens) - self._n_before)
        self._plan_log += raw["plan_log"]
        n_accepted = sum(self._accepted[self._n_before :])
        timings = Timings.from_raw(
            raw,
            draft_n_accepted=n_accepted,
            text_draft_n_accepted=min(raw["text_draft_n_accepted"], n_accepted),
            loops=is_looping(tokens) or ends_in_a_loop(tokens, self._request.sampling.max_repeats),
            peak_memory=_peak_memory(),
            plan=self._shared.plan_facts(self._request.plan, raw),
        )
        if self._n_before == 0:
            return timings
        # The native prompt of the continued answer contains the answer's tokens up to the closing text. These
        # tokens do not count as prompt tokens.
        return self._timings + replace(timings, prompt_n=0, reused_n=0)

    def _settle(self) -> None:
        """Ends the native generation and reports its counters."""
        if self._is_running:
            self._timings = self._end()
        self._timings = replace(self._timings, predicted_n=len(self._tokens))
        self._shared.count(self._timings, self._request.sampling.temperature)
        # A prompt with images has negative token ids. It is skipped, because `on_answer` does not receive
        # images.
        if self._shared.on_answer is not None and min(self.prompt_tokens) >= 0:
            self._shared.on_answer(self.prompt_tokens, self._tokens)

    def _report_end(self) -> None:
        if self.on_end is not None and not self._failed:
            self.on_end(self.completion())


def _peak_memory() -> int:
    """Returns the peak memory of this process so far, in bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def next_chunks(streams: Sequence[Stream], for_ms: float = 0.0) -> list[Chunk | BaseException | None]:
    """Runs one step of several streams of one engine. Streams that already generate are verified in one
    batch. Returns for each stream its chunk, None while its prompt is being processed, or the error that has
    closed the stream. Such an error comes from the stream's sampler (a grammar that allows no token) or from
    decoding the stream's tokens. for_ms: runs as many rounds as start within this time; 0 = one round.

    Raises an error of the whole step. Such an error cannot be assigned to one stream, so no stream is closed.
    """
    for_ms = min(for_ms, *(stream.unwatched_ms for stream in streams))
    results = step_together([(stream._sequence, stream._generation) for stream in streams], for_ms)
    return [stream._chunk_of(result) for stream, result in zip(streams, results, strict=True)]
