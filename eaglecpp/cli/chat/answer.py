# SPDX-License-Identifier: MIT
"""One answer: streams it to the screen until it ends or Ctrl+C stops it; and the statistics after it.

Both the chat and the one-shot `run` go through here. What was generated before Ctrl+C counts as the answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.terminal import Watch, silent_keys, stats_line, verbose_lines

if TYPE_CHECKING:
    from eaglecpp.chat.model import ChatPrompt
    from eaglecpp.cli.chat.model import RunModel
    from eaglecpp.results import Completion, Timings

__all__ = [
    "PlainSpeed",
    "Settings",
    "ShownAnswer",
    "answer",
    "answer_lines",
    "response_format",
    "verdict_line",
]

_ENOUGH_TOKENS = 16  # a shorter plain answer says little about the speed
_ENOUGH_TO_JUDGE = 32  # shorter answers say little about the drafter


@dataclass
class Settings:
    """How answers are made and shown; `/set` changes it in a chat.

    think:  None = the template's default
    format: "", "json", or a JSON schema as text
    """

    think: bool | str | None = None
    format: str = ""
    verbose: bool = False
    history: bool = True


@dataclass(frozen=True)
class ShownAnswer:
    """The result. stopped: by Ctrl+C; total_ms: wall time; load_ms: of it, a server's for loading."""

    completion: Completion
    content: str
    thinking: str
    stopped: bool
    total_ms: float
    load_ms: float = 0.0

    @property
    def timings(self) -> Timings:
        """The counters of the generation."""
        return self.completion.timings


class PlainSpeed:
    """What drafting gains over plain decoding, estimated answer by answer.

    The planner knows best, because it measures plain steps. A fixed strategy has no such steps, so it is
    compared with the last plain answer of this process.
    """

    def __init__(self) -> None:
        self._plain_ms = 0.0  # per token
        self._n_tokens = 0
        self._n_plain_steps = 0.0  # that would have taken as long

    @property
    def overall(self) -> float | None:
        """The overall speed-up of drafted answers for which it is known; None if there are none."""
        return self._n_tokens / self._n_plain_steps if self._n_plain_steps else None

    def learn(self, stats: Timings) -> float | None:
        """Takes the counters of an answer; returns its speed-up, None if unknown."""
        if stats.draft_n == 0:
            if stats.predicted_n >= _ENOUGH_TOKENS:
                self._plain_ms = stats.predicted_ms / stats.predicted_n
            return None
        n_steps = self._plain_steps(stats)
        if not n_steps:
            return None
        self._n_tokens += stats.predicted_n
        self._n_plain_steps += n_steps
        return stats.predicted_n / n_steps

    def _plain_steps(self, stats: Timings) -> float:
        """How many plain steps would have taken as long as an answer; 0 if unknown."""
        speedup = stats.plan.get("speedup")
        if speedup:
            return float(stats.predicted_n / speedup)
        return stats.predicted_ms / self._plain_ms if self._plain_ms else 0.0


def answer(
    model: RunModel, prompt: ChatPrompt, screen: Screen, settings: Settings, *, seed_step: int = 0
) -> ShownAnswer:
    """Generates and shows one answer. seed_step: as of `RunModel.sampling`.

    Raises what `Session.stream` raises. The answer's line on the screen is ended in any case.
    """
    started = time.perf_counter()
    reader = model.chat.reader(prompt)
    watch = Watch()
    with watch.listening(), silent_keys():
        stream = model.engine.default_session.stream(
            prompt.tokens,
            sampling=model.sampling(seed_step),
            strategy=model.strategy,
            on_prefill=watch.on_prefill,
            **response_format(settings.format),
        )
        try:
            for chunk in stream:
                watch.clear()
                screen.show(reader.read(chunk))
                if watch.requested:
                    break
        except KeyboardInterrupt:
            watch.requested = True
        finally:
            stream.close()
            watch.clear()
            screen.show(reader.finish(stream.completion().text))
            screen.end()
    completion = stream.completion()
    model.memory.remember(prompt.rendered, completion)
    total_ms = 1000 * (time.perf_counter() - started)
    return ShownAnswer(completion, reader.content, reader.thinking, watch.requested, total_ms)


def answer_lines(
    made: ShownAnswer, model: RunModel, settings: Settings, load_ms: float, speedup: float | None
) -> list[str]:
    """The lines after an answer. load_ms: before it in this process, 0 if the model was already loaded."""
    lines = []
    if settings.verbose:
        lines = ["", *verbose_lines(made.timings, made.total_ms + load_ms, load_ms + made.load_ms, speedup)]
        if model.is_open:
            lines.append(f"{'template:':<22}{model.chat.template.describe()}")
    has_draft = model.can_draft if model.is_open else "rounds" in made.timings.plan
    return [*lines, stats_line(made.timings, has_draft=has_draft, speedup=speedup)]


def verdict_line(stats: Timings, model: RunModel, speedup: float | None) -> str:
    """What drafting and the kernels give here, in plain words; empty while `auto` does not know it from
    measuring, or where the answer was made in another way than is best by now.
    """
    from eaglecpp.bench import known_verdict

    if stats.plan.get("strategy") != "auto" or stats.predicted_n < _ENOUGH_TO_JUDGE:
        return ""
    has_drafted = 20 * stats.draft_n_accepted > stats.predicted_n
    found = known_verdict(model.engine, speedup if has_drafted else None)
    is_true = found.is_measured and found.has_drafted == has_drafted and (has_drafted or not found.pays)
    return str(found) if is_true else ""


def response_format(text: str) -> dict[str, Any]:
    """The arguments of `Session.stream` for a `--format` value."""
    if not text:
        return {}
    return {"response_format": {"type": "json_object"}} if text == "json" else {"json_schema": text}
