# SPDX-License-Identifier: MIT
"""State shared by requests. `Work`: the server's threads by purpose. `Held`: bytes of request bodies.
`KeptResponses`: responses that later requests may continue. `OwnTexts`: texts that each API key has sent and
received. `Metrics`: counters of answers. Everything but the threads belongs to the event loop, so there are
no locks.

Work that blocks or takes longer than a few milliseconds runs in one of these threads, or in the threads that
each engine has for prompts and vectors (`eaglecpp.engine.AsyncEngine`). So no kind of slow request delays the
other kinds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.types import Scope

from eaglecpp.server.errors import ApiError
from eaglecpp.threads import Threads


class Work:
    """Threads of the server, by purpose.

    names:     look up model names, for every request
    loading:   open models, one after another
    files:     list and describe models, and change the store
    downloads: pull models, which may take hours; further pulls are refused while all threads are busy
    bodies:    parse large bodies
    answers:   encode large answers
    """

    def __init__(self) -> None:
        self.names = Threads("names", 2)
        self.loading = Threads("loading", 1)
        self.files = Threads("files", 4)
        self.downloads = Threads("downloads", 8)
        self.bodies = Threads("bodies", 1)
        self.answers = Threads("answers", 4)


class Held:
    """Counter of the bytes in the bodies of all unanswered requests. n_max: maximum of this sum. The first 64
    KiB of a body are not counted, so a few large bodies cannot block ordinary requests.
    """

    FREE = 64 << 10

    def __init__(self, n_max: int) -> None:
        self._n_max = n_max
        self._n = 0

    def hold(self, scope: Scope, size: int) -> None:
        """Counts the body of a request. size: bytes of the body received so far. Raises ApiError if the sum
        of all bodies exceeds n_max.
        """
        more = max(0, size - self.FREE) - scope.get("held", 0)
        if more <= 0:
            return
        if self._n + more > self._n_max:
            raise ApiError(503, "server busy with other large requests, please try again", code="queue_full")
        self._n += more
        scope["held"] = scope.get("held", 0) + more

    def release(self, scope: Scope) -> None:
        self._n -= scope.pop("held", 0)


class KeptResponses:
    """Responses that later requests may continue. n_max, n_bytes: maximum number and bytes of each owner's
    responses; 0 = keep no responses. The least recently used responses are dropped first. An owner is an API
    key, or "" if the server requires no key. Owners can neither read nor evict each other's responses.
    """

    def __init__(self, n_max: int, n_bytes: int) -> None:
        self.n_max, self.n_bytes = n_max, n_bytes
        self._of: dict[str, OrderedDict[str, bytes]] = {}

    def add(self, owner: str, id: str, items: bytes) -> bool:
        """Keeps a conversation including its response. items: JSON array of the conversation's items. Returns
        False if this conversation alone exceeds the limit.
        """
        if not self.n_max or len(items) > self.n_bytes:
            return False
        own = self._of.setdefault(owner, OrderedDict())
        own[id] = items
        n_bytes = sum(map(len, own.values()))
        while len(own) > self.n_max or n_bytes > self.n_bytes:
            n_bytes -= len(own.popitem(last=False)[1])
        return True

    def find(self, owner: str, id: str) -> bytes | None:
        own = self._of.get(owner, OrderedDict())
        if id in own:
            own.move_to_end(id)
        return own.get(id)


class OwnTexts:
    """The latest prompts and answers of each API key on one model, as tokens. An answer counts as cached only
    the tokens that its own key has sent or received before. So the count reveals nothing about the prompts of
    other keys.
    """

    N_MAX = 32

    def __init__(self) -> None:
        self._of: dict[str, deque[NDArray[np.int32]]] = {}

    def add(self, owner: str, tokens: Sequence[int]) -> int:
        """Adds a text of an owner. Returns the length in tokens of the text's longest common prefix with the
        owner's earlier texts.
        """
        text = np.array(tokens, np.int32)
        own = self._of.setdefault(owner, deque(maxlen=self.N_MAX))
        lengths = [_n_equal(text, old) for old in own]
        for old, n in [*zip(own, lengths, strict=True)]:
            if n == len(old):  # the new text continues the old text
                own = self._of[owner] = deque((other for other in own if other is not old), self.N_MAX)
        own.append(text)
        return max(lengths, default=0)


def _n_equal(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Returns the length of the common prefix of two texts, in tokens."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


_OF_ANSWERS = {
    "prompt_tokens_total": ("prompt_n", "Prompt tokens computed."),
    "prompt_tokens_reused_total": ("reused_n", "Prompt tokens found in a cache."),
    "predicted_tokens_total": ("predicted_n", "Tokens generated."),
    "rounds_total": ("rounds", "Forward passes of the target after prompts."),
    "draft_tokens_total": ("draft_n", "Tokens drafted."),
    "draft_tokens_accepted_total": ("draft_n_accepted", "Drafted tokens that were accepted."),
}
"""Counters of `/metrics` by name, each with its description and the entry of `timings` that is summed."""
_GAUGES = {
    "requests_running": "Running generations.",
    "requests_waiting": "Requests waiting for a slot.",
    "model_bytes": "Memory of loaded models, estimated.",
    "host_cache_conversations": "Conversations swapped out to host memory.",
    "host_cache_bytes": "Memory of swapped out conversations.",
}
_FAMILIES = {
    **{name: ("counter", help) for name, (_, help) in _OF_ANSWERS.items()},
    **{name: ("gauge", help) for name, help in _GAUGES.items()},
    "requests_total": ("counter", "Requests by path and status."),
    "model_loads_total": ("counter", "Models loaded."),
    "generations_total": ("counter", "Generations by finish reason."),
    "queue_seconds_total": ("counter", "Time that requests waited for a slot."),
    "first_token_seconds_total": ("counter", "Time from requests to their first tokens."),
    "generation_seconds_total": ("counter", "Time from requests to their last tokens."),
}
_FORMER = {"host_cache_conversations": "parked_conversations", "host_cache_bytes": "parked_bytes"}
"""Former names of metrics by current name. Metrics are exported under both names."""


class Metrics:
    """The content of `/metrics`."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {name: {} for name in _FAMILIES}

    def add(self, family: str, value: float = 1, **labels: Any) -> None:
        values, key = self._values[family], f"{family}{_labels(labels)}"
        values[key] = values.get(key, 0.0) + value

    def count(self, model: str, timings: Mapping[str, Any], reason: str, seconds: float) -> None:
        """Adds one generation to the counters."""
        for family, (key, _) in _OF_ANSWERS.items():
            self.add(family, timings.get(key, 0), model=model)
        self.add("generations_total", model=model, reason=reason)
        self.add("queue_seconds_total", timings["queue_ms"] / 1000, model=model)
        self.add("first_token_seconds_total", (timings["first_token_ms"] or 0.0) / 1000, model=model)
        self.add("generation_seconds_total", seconds, model=model)

    def text(self, models: Iterable[Any]) -> str:
        """Formats all metrics. models: the models in memory, whose gauges are read now"""
        self._values |= {family: {} for family in _GAUGES}
        for model in models:
            engine = model.engine
            now = (engine.n_running, engine.n_waiting, model.n_bytes, *engine.host_cached)
            for family, value in zip(_GAUGES, now, strict=True):
                self.add(family, value, model=model.name)
        lines = []
        for family, (kind, help) in _FAMILIES.items():
            lines += [f"# HELP eaglecpp_{family} {help}", f"# TYPE eaglecpp_{family} {kind}"]
            for key, value in self._values[family].items():
                former = [_FORMER[family] + key.removeprefix(family)] if family in _FORMER else []
                lines += [f"eaglecpp_{name} {value:.12g}" for name in (key, *former)]
        return "\n".join(lines) + "\n"


def note_answer(scope: MutableMapping[str, Any], model: str, timings: Mapping[str, Any]) -> None:
    """Remembers an answer for the log line of its request. timings: the available timings"""
    scope.setdefault("answers", []).append((model, timings))


def in_words(scope: Mapping[str, Any]) -> list[str]:
    """Summarizes a request's answers for the log: model, tokens, speed and drafts. [] without answers."""
    if not (answers := scope.get("answers")):
        return []

    def n(key: str) -> int:
        return sum(timings.get(key, 0) for _, timings in answers)

    words = [answers[0][0], f"prompt {n('prompt_n') + n('reused_n')} ({n('reused_n')} cached)"]
    if n("predicted_n"):
        ms = max(timings.get("predicted_ms", 0.0) for _, timings in answers)
        # The answers ran at the same time, so only the longest time counts.
        words.append(f"answer {n('predicted_n')}, {1000 * n('predicted_n') / max(ms, 1e-3):.1f} tokens/s")
        words.append(f"drafts {n('draft_n_accepted')}/{n('draft_n')}")
    return words


def _labels(labels: Mapping[str, Any]) -> str:
    texts = []
    for name, value in sorted(labels.items()):
        plain = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        texts.append(f'{name}="{plain}"')
    return "{" + ",".join(texts) + "}" if texts else ""
