# SPDX-License-Identifier: MIT
"""Counters of a server in Prometheus' text format, and what the log says of a request's answers. All of it
belongs to the event loop; nothing is locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Counter:
    """A number for each set of labels; a gauge when `kind` says so."""

    def __init__(self, name: str, help: str, kind: str = "counter") -> None:
        self.name, self.help, self.kind = name, help, kind
        self.values: dict[str, float] = {}

    def add(self, value: float, **labels: Any) -> None:
        key = _labels(labels)
        self.values[key] = self.values.get(key, 0.0) + value

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in sorted(self.values.items()):
            yield f"{self.name}{labels} {value:.12g}"


class Histogram(Counter):
    """Seconds, in fixed buckets."""

    def __init__(self, name: str, help: str, bounds: Sequence[float] = _SECONDS) -> None:
        super().__init__(name, help, "histogram")
        self.bounds = (*bounds, float("inf"))
        self._counts = [0] * len(self.bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        for index, bound in enumerate(self.bounds):
            self._counts[index] += value <= bound
        self._sum += value

    def lines(self) -> Iterable[str]:
        yield from super().lines()
        for bound, count in zip(self.bounds, self._counts, strict=True):
            yield f'{self.name}_bucket{{le="{"+Inf" if bound == float("inf") else bound}"}} {count}'
        yield f"{self.name}_sum {self._sum:.9g}"
        yield f"{self.name}_count {self._counts[-1]}"


class Metrics:
    """Everything `/metrics` shows."""

    def __init__(self) -> None:
        self.requests = Counter("eaglecpp_requests_total", "Requests by path and status.")
        self.loads = Counter("eaglecpp_model_loads_total", "Models loaded.")
        self.of_answers = {
            key: Counter(f"eaglecpp_{name}_total", help)
            for key, name, help in (
                ("prompt_n", "prompt_tokens", "Prompt tokens computed."),
                ("reused_n", "prompt_tokens_reused", "Prompt tokens found in a cache."),
                ("predicted_n", "predicted_tokens", "Tokens generated."),
                ("rounds", "rounds", "Forward passes of the target after prompts."),
                ("draft_n", "draft_tokens", "Tokens drafted."),
                ("draft_n_accepted", "draft_tokens_accepted", "Drafted tokens that were accepted."),
            )
        }
        self.ended = Counter("eaglecpp_generations_total", "Generations by how they ended.")
        self.queue_s = Histogram("eaglecpp_queue_seconds", "Time until a request had a slot.")
        self.first_s = Histogram("eaglecpp_first_token_seconds", "Time from request to first token.")
        self.total_s = Histogram("eaglecpp_generation_seconds", "Time from request to last token.")
        self.token_s = Histogram(
            "eaglecpp_token_seconds", "Mean time per generated token of a generation.", _TOKEN_SECONDS
        )

    def count(self, model: str, timings: Mapping[str, Any], reason: str) -> None:
        """Adds one generation."""
        for key, counter in self.of_answers.items():
            counter.add(timings.get(key, 0), model=model)
        self.ended.add(1, model=model, reason=reason)
        if timings.get("predicted_n"):
            self.token_s.observe(timings["predicted_ms"] / timings["predicted_n"] / 1000)

    def text(self, models: Iterable[Any]) -> str:
        """models: of the pool, which are measured now"""
        gauges = [
            Counter("eaglecpp_requests_running", "Generations under way.", "gauge"),
            Counter("eaglecpp_requests_waiting", "Requests waiting for a slot.", "gauge"),
            Counter("eaglecpp_model_bytes", "Memory of loaded models, estimated.", "gauge"),
            Counter("eaglecpp_parked_conversations", "Conversations kept in host memory.", "gauge"),
            Counter("eaglecpp_parked_bytes", "Memory of parked conversations.", "gauge"),
        ]
        for model in models:
            engine = model.engine
            now = (engine.n_running, engine.n_waiting, model.n_bytes, *engine.n_parked)
            for gauge, value in zip(gauges, now, strict=True):
                gauge.add(value, model=model.name)
        found = [*self.of_answers.values(), *gauges]
        found += [one for one in vars(self).values() if isinstance(one, Counter)]
        return "\n".join(line for one in found for line in one.lines()) + "\n"


def note_answer(scope: MutableMapping[str, Any], model: str, timings: Mapping[str, Any]) -> None:
    """Remembers an answer for the line of its request in the log. timings: what there is of an answer's"""
    scope.setdefault("answers", []).append((model, timings))


_TOLD = ("prompt_n", "reused_n", "predicted_n", "draft_n", "draft_n_accepted")


def answers_told(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The answers of a request together: model, tokens, tokens per second of those that were generated, and
    drafts. {} without any.
    """
    found = scope.get("answers")
    if not found:
        return {}
    told: dict[str, Any] = {"model": found[0][0]}
    told |= {key: sum(timings.get(key, 0) for _, timings in found) for key in _TOLD}
    ms = max(timings.get("predicted_ms", 0.0) for _, timings in found)  # they ran side by side
    told["predicted_per_second"] = round(1000 * told["predicted_n"] / ms, 1) if ms > 0 else 0.0
    return told


def in_words(told: Mapping[str, Any]) -> list[str]:
    """What `answers_told` says, for a reader."""
    if not told:
        return []
    n_prompt = told["prompt_n"] + told["reused_n"]
    words = [told["model"], f"prompt {n_prompt} ({told['reused_n']} cached)"]
    if told["predicted_n"]:
        words.append(f"answer {told['predicted_n']}, {told['predicted_per_second']} tokens/s")
        words.append(f"drafts {told['draft_n_accepted']}/{told['draft_n']}")
    return words


def _labels(labels: Mapping[str, Any]) -> str:
    texts = []
    for name, value in sorted(labels.items()):
        plain = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        texts.append(f'{name}="{plain}"')
    return "{" + ",".join(texts) + "}" if texts else ""
