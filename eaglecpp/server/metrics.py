# SPDX-License-Identifier: MIT
"""Counters of a server in Prometheus' text format. All of it belongs to the event loop; nothing is locked.
Every server has its own; `prometheus_client` counts by process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["Counter", "Histogram", "Metrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Counter:
    """A number for each set of labels; a gauge when `kind` says so."""

    def __init__(self, name: str, help: str, kind: str = "counter") -> None:
        self.name, self.help, self.kind = name, help, kind
        self._values: dict[tuple[tuple[str, str], ...], float] = {}

    def add(self, value: float, **labels: Any) -> None:
        key = tuple(sorted((name, str(text)) for name, text in labels.items()))
        self._values[key] = self._values.get(key, 0.0) + value

    def set(self, value: float, **labels: Any) -> None:
        self._values[tuple(sorted((name, str(text)) for name, text in labels.items()))] = value

    def clear(self) -> None:
        self._values.clear()

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_labels(labels)} {value:.12g}"


class Histogram:
    """Seconds, in fixed buckets."""

    def __init__(self, name: str, help: str, bounds: Sequence[float] = _SECONDS) -> None:
        self.name, self.help, self.bounds = name, help, tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        index = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self._counts[index] += 1
        self._sum += value

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{le="{bound}"}} {total}'
        yield f"{self.name}_sum {self._sum:.9g}"
        yield f"{self.name}_count {total}"


class Metrics:
    """Everything `/metrics` shows."""

    def __init__(self) -> None:
        self.requests = Counter("eaglecpp_requests_total", "Requests by path and status.")
        self.loads = Counter("eaglecpp_model_loads_total", "Models loaded.")
        self.prompt = Counter("eaglecpp_prompt_tokens_total", "Prompt tokens computed.")
        self.reused = Counter("eaglecpp_prompt_tokens_reused_total", "Prompt tokens found in a cache.")
        self.predicted = Counter("eaglecpp_predicted_tokens_total", "Tokens generated.")
        self.rounds = Counter("eaglecpp_rounds_total", "Forward passes of the target after prompts.")
        self.drafted = Counter("eaglecpp_draft_tokens_total", "Tokens drafted.")
        self.accepted = Counter("eaglecpp_draft_tokens_accepted_total", "Drafted tokens that were accepted.")
        self.ended = Counter("eaglecpp_generations_total", "Generations by how they ended.")
        self.running = Counter("eaglecpp_requests_running", "Generations under way.", "gauge")
        self.waiting = Counter("eaglecpp_requests_waiting", "Requests waiting for a place.", "gauge")
        self.loaded = Counter("eaglecpp_model_bytes", "Memory of loaded models, estimated.", "gauge")
        self.parked = Counter("eaglecpp_parked_conversations", "Conversations kept in host memory.", "gauge")
        self.parked_bytes = Counter("eaglecpp_parked_bytes", "Memory of parked conversations.", "gauge")
        self.queue_s = Histogram("eaglecpp_queue_seconds", "Time until a request had a place.")
        self.first_s = Histogram("eaglecpp_first_token_seconds", "Time from request to first token.")
        self.total_s = Histogram("eaglecpp_generation_seconds", "Time from request to last token.")
        self.token_s = Histogram(
            "eaglecpp_token_seconds", "Mean time per generated token of a generation.",
            (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
        )  # fmt: skip

    def count(self, model: str, timings: Mapping[str, Any], reason: str) -> None:
        """Adds one generation."""
        for counter, key in (
            (self.prompt, "prompt_n"),
            (self.reused, "reused_n"),
            (self.predicted, "predicted_n"),
            (self.rounds, "rounds"),
            (self.drafted, "draft_n"),
            (self.accepted, "draft_n_accepted"),
        ):
            counter.add(timings.get(key, 0), model=model)
        self.ended.add(1, model=model, reason=reason)
        if timings.get("predicted_n"):
            self.token_s.observe(timings["predicted_ms"] / timings["predicted_n"] / 1000)

    def text(self) -> str:
        lines: list[str] = []
        for metric in vars(self).values():
            lines += metric.lines()
        return "\n".join(lines) + "\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    texts = []
    for name, value in labels:
        plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        texts.append(f'{name}="{plain}"')
    return "{" + ",".join(texts) + "}" if texts else ""
