# SPDX-License-Identifier: MIT
"""Reports in one or two sentences the speed-up by drafting and by eaglecpp's kernels, for one model on this
machine.

`doctor`, `run`, `bench` and the server all use this module, so that they agree. A verdict summarises the
answers recorded on this machine, if any; otherwise it predicts from the measured costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from eaglecpp._extension import core
from eaglecpp.bench.llama_plain import LlamaPlain, llama_plain
from eaglecpp.bench.strategies import Speeds, measure, plan_report, point_at
from eaglecpp.engine.engine import Engine
from eaglecpp.engine.gains import Gain

# Minimum speed-up over target-only decoding that is reported. Smaller speed-ups disappear in rounding.
PAYS = 1.05
# Maximum ratio of llama.cpp's two measurements. A higher ratio means that other programs disturbed the
# measurement.
_STEADY = 1.2


@dataclass(frozen=True)
class Verdict:
    """Speed-up by drafting and by eaglecpp's kernels on this machine.

    n_rows:   size of the target's batch, which has the drafts and the token before them; 0 without a drafter
    row_cost: time of such a batch divided by the time of a single token
    most:     maximum cost at which drafting pays
    tokens:   expected tokens per round
    speed:    speed relative to target-only decoding, measured on the counted answers, or else predicted
              for the expected rounds
    greedy, sampled: speed-up on the counted answers at temperature 0 and above; None = too few answers
    kernels:  speed of target-only decoding with eaglecpp's kernels divided by the speed with llama.cpp's own
              kernels; None = not measured, or llama.cpp's own kernels are in use
    is_busy:  the measurement failed because other programs took the processor
    """

    n_rows: int = 0
    row_cost: float = 0.0
    most: float = 0.0
    tokens: float = 0.0
    speed: float = 0.0
    greedy: Gain | None = None
    sampled: Gain | None = None
    kernels: float | None = None
    is_busy: bool = False

    @property
    def pays(self) -> bool:
        return self.speed >= PAYS

    def as_dict(self) -> dict[str, Any]:
        """Returns the verdict as JSON-ready data."""
        return asdict(self) | {"pays": self.pays}

    def __str__(self) -> str:
        if self.is_busy:
            return "Not measured, because other programs used the processor. Close them and measure again."
        return " ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        """Yields a sentence on drafting if there is a drafter, and on the kernels if they were measured."""
        if self.n_rows:
            yield self._on_drafting()
        if self.kernels is not None:
            times = f"{self.kernels:.1f} times as fast as llama.cpp's own"
            yield f"eaglecpp's kernels make target-only decoding {times}."

    def _on_drafting(self) -> str:
        answered = [gain for gain in (self.greedy, self.sampled) if gain is not None]
        longer = f"{self.row_cost:.1f} times as long as" if self.row_cost >= PAYS else "no longer than"
        cost = f"checking {self.n_rows} tokens at once takes {longer} one token on this machine"
        if not (self.tokens > PAYS if answered else self.speed >= 1.0):
            does = "does" if answered else "should"
            need = "drafting would pay if more of its tokens were accepted"
            if self.most >= 1:
                need = f"with this drafter, drafting pays below {self.most:.1f} times"
            return f"Drafting {does} not pay here, so auto leaves it off: {cost}; {need}."
        if not answered:
            begin = "Drafting should make little difference here"
            if self.pays:
                speed = f"about {self.speed:.1f} times the speed of target-only decoding"
                begin = f"Drafting should pay here, with {speed}"
            return f"{begin}: {cost}. With this drafter, each check gives about {self.tokens:.1f} tokens."
        begin = "Drafting pays here" if self.pays else "Drafting makes little difference here"
        speeds = f"{answered[0].speed:.1f} times"
        if len(answered) == 2:
            speeds = f"{answered[0].speed:.1f} times (greedy) and {answered[1].speed:.1f} times (sampled)"
        n_answers = sum(gain.n_answers for gain in answered)
        where = f"the last {n_answers} answers" if n_answers > 1 else "the last answer"
        return (
            f"{begin}: {speeds} the speed of target-only decoding in {where}, with an acceptance length "
            f"of {self.tokens:.1f}; {cost}."
        )


def verdict_of(engine: Engine) -> Verdict:
    """Returns the verdict from the answers recorded on this machine, or predicts the verdict if there are no
    such answers.
    """
    if not engine.timings.predicted_n:
        engine.clear()  # `clear` opens a conversation, which the report needs
    gains, verdict = engine.shared.gains, planned_verdict(plan_report(engine))
    greedy, sampled, both = gains.gain(greedy=True), gains.gain(greedy=False), gains.gain()
    verdict = replace(verdict, greedy=greedy, sampled=sampled, kernels=gains.kernels)
    return verdict if both is None else replace(verdict, speed=both.speed, tokens=both.tokens)


def planned_verdict(report: Mapping[str, Any] | None) -> Verdict:
    """Predicts the verdict from the result of `plan_report`, for the chain with the best speed. report: None
    = no drafter, or no data.

    A batch costs at least as much as one token, so the speed-up of a round cannot exceed its number of
    tokens. A smaller measured cost is noise.
    """
    if report is None:
        return Verdict()
    plain: float = report["plain_ms"]

    def priced(draft: Mapping[str, Any]) -> tuple[float, float, float]:
        """Returns the speed of a round with a draft of this size, the time of verification, and the time of
        drafting and of work on the host.
        """
        _, verify, _ = point_at(report["verify"], draft["nodes"] + 1)
        rest = max(draft["ms"] - verify, 0.0)
        verify = max(verify, plain)
        return draft["tokens"] * plain / (verify + rest), verify, rest

    best = max(report["chains"], key=lambda draft: priced(draft)[0])
    speed, verify, rest = priced(best)
    n_rows, tokens, most = best["nodes"] + 1, best["tokens"], (best["tokens"] * plain - rest) / plain
    return Verdict(n_rows, row_cost=verify / plain, most=most, tokens=tokens, speed=speed)


def keep(engine: Engine, measured: Sequence[Speeds], kernels: float | None = None) -> bool:
    """Replaces the recorded speed-ups by a measurement of target-only decoding and of the strategy `auto`. If
    the measurement is not steady, returns False and keeps the old speed-ups. measured: measurements of one
    engine.
    """
    if not all(one.is_steady for one in measured):
        return False
    drafted = [answer for one in measured if one.strategy != "off" for answer in one.answers]
    engine.shared.gains.replace(drafted, kernels)
    return True


def measure_verdict(engine: Engine, seconds: float = 8.0) -> Verdict:
    """Measures the verdict by decoding for about `seconds`, with and without drafts. If eaglecpp's kernels
    are in use, the function also measures llama.cpp's own kernels before and after, each time for a sixth of
    the time.
    """
    info = engine.device_info
    amx = core.system_info()["amx"]

    def of_llama() -> LlamaPlain | None:
        if not info["kernels"]:
            return None
        repack = not amx["claimed"] or amx["works"]
        return llama_plain(engine.target_path, info["n_threads"], repack=repack, seconds=seconds / 6)

    before = of_llama()
    measured = measure(engine, ("off", "auto") if engine.has_draft else ("off",), seconds=seconds)
    after = of_llama()
    plain = [one for one in measured if one.strategy == "off"]
    kernels, is_busy = None, False
    if before is not None and after is not None:
        ours = sum(one.ms for one in plain) / len(plain)
        kernels = (before.ms + after.ms) / 2 / ours
        low, high = sorted((before.ms, after.ms))
        is_busy = before.is_disturbed or after.is_disturbed or high > _STEADY * low
    if is_busy or not keep(engine, measured, kernels):
        return replace(verdict_of(engine), is_busy=True)
    return verdict_of(engine)
