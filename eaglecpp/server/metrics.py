# SPDX-License-Identifier: MIT
"""Counters of a server in Prometheus' text format, and what the log says of a request's answers. All of it
belongs to the event loop; nothing is locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

_OF_ANSWERS = {
    "prompt_tokens_total": ("prompt_n", "Prompt tokens computed."),
    "prompt_tokens_reused_total": ("reused_n", "Prompt tokens found in a cache."),
    "predicted_tokens_total": ("predicted_n", "Tokens generated."),
    "rounds_total": ("rounds", "Forward passes of the target after prompts."),
    "draft_tokens_total": ("draft_n", "Tokens drafted."),
    "draft_tokens_accepted_total": ("draft_n_accepted", "Drafted tokens that were accepted."),
}
"""Counters by the timings that they add up."""
_GAUGES = {
    "requests_running": "Generations under way.",
    "requests_waiting": "Requests waiting for a slot.",
    "model_bytes": "Memory of loaded models, estimated.",
    "parked_conversations": "Conversations kept in host memory.",
    "parked_bytes": "Memory of parked conversations.",
}
_FAMILIES = {
    **{name: ("counter", help) for name, (_, help) in _OF_ANSWERS.items()},
    **{name: ("gauge", help) for name, help in _GAUGES.items()},
    "requests_total": ("counter", "Requests by path and status."),
    "model_loads_total": ("counter", "Models loaded."),
    "generations_total": ("counter", "Generations by how they ended."),
    "queue_seconds_total": ("counter", "Time until requests had a slot."),
    "first_token_seconds_total": ("counter", "Time from requests to their first tokens."),
    "generation_seconds_total": ("counter", "Time from requests to their last tokens."),
}


class Metrics:
    """Everything `/metrics` shows."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {name: {} for name in _FAMILIES}

    def add(self, family: str, value: float = 1, **labels: Any) -> None:
        values, key = self._values[family], f"{family}{_labels(labels)}"
        values[key] = values.get(key, 0.0) + value

    def count(self, model: str, timings: Mapping[str, Any], reason: str, seconds: float) -> None:
        """Adds one generation."""
        for family, (key, _) in _OF_ANSWERS.items():
            self.add(family, timings.get(key, 0), model=model)
        self.add("generations_total", model=model, reason=reason)
        self.add("queue_seconds_total", timings["queue_ms"] / 1000, model=model)
        self.add("first_token_seconds_total", (timings["first_token_ms"] or 0.0) / 1000, model=model)
        self.add("generation_seconds_total", seconds, model=model)

    def text(self, models: Iterable[Any]) -> str:
        """models: of the pool, which are measured now"""
        self._values |= {family: {} for family in _GAUGES}
        for model in models:
            engine = model.engine
            now = (engine.n_running, engine.n_waiting, model.n_bytes, *engine.n_parked)
            for family, value in zip(_GAUGES, now, strict=True):
                self.add(family, value, model=model.name)
        lines = []
        for family, (kind, help) in _FAMILIES.items():
            lines += [f"# HELP eaglecpp_{family} {help}", f"# TYPE eaglecpp_{family} {kind}"]
            lines += [f"eaglecpp_{key} {value:.12g}" for key, value in self._values[family].items()]
        return "\n".join(lines) + "\n"


def note_answer(scope: MutableMapping[str, Any], model: str, timings: Mapping[str, Any]) -> None:
    """Remembers an answer for the line of its request in the log. timings: what there is of an answer's"""
    scope.setdefault("answers", []).append((model, timings))


def in_words(scope: Mapping[str, Any]) -> list[str]:
    """A request's answers together, for the log: model, tokens, speed and drafts. [] without any."""
    if not (found := scope.get("answers")):
        return []

    def n(key: str) -> int:
        return sum(timings.get(key, 0) for _, timings in found)

    words = [found[0][0], f"prompt {n('prompt_n') + n('reused_n')} ({n('reused_n')} cached)"]
    if n("predicted_n"):
        ms = max(timings.get("predicted_ms", 0.0) for _, timings in found)  # they ran side by side
        words.append(f"answer {n('predicted_n')}, {1000 * n('predicted_n') / max(ms, 1e-3):.1f} tokens/s")
        words.append(f"drafts {n('draft_n_accepted')}/{n('draft_n')}")
    return words


def _labels(labels: Mapping[str, Any]) -> str:
    texts = []
    for name, value in sorted(labels.items()):
        plain = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        texts.append(f'{name}="{plain}"')
    return "{" + ",".join(texts) + "}" if texts else ""
