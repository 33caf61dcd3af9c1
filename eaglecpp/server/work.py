# SPDX-License-Identifier: MIT
"""What requests share: `Work`, which threads of the server do what, and `Held`, the bytes of their bodies.

Everything that blocks, and everything that takes longer than some milliseconds, runs in one of these threads,
or in those that each engine has for its prompts and vectors (`eaglecpp.engine.AsyncEngine`); so no kind of
slow request keeps the others waiting.
"""

from __future__ import annotations

from starlette.types import Scope

from eaglecpp.server.errors import ApiError
from eaglecpp.threads import Threads


class Work:
    """names:     what the name of a model stands for, which every request asks
    loading:   opening of models, one after another
    files:     lists and facts of models, changes of the store
    downloads: pulls, which may take hours; no further one is accepted while all are busy
    bodies:    large bodies and what is read from them
    answers:   large answers
    """

    def __init__(self) -> None:
        self.names = Threads("names", 2)
        self.loading = Threads("loading", 1)
        self.files = Threads("files", 4)
        self.downloads = Threads("downloads", 8)
        self.bodies = Threads("bodies", 1)
        self.answers = Threads("answers", 4)


class Held:
    """Bytes of bodies that requests hold until they are answered. n_max: of all together. What nearly every
    request has is free, so that the large ones of some do not refuse the others'.
    """

    FREE = 64 << 10

    def __init__(self, n_max: int) -> None:
        self._n_max = n_max
        self._n = 0

    def hold(self, scope: Scope, size: int) -> None:
        """size: bytes that this request has by now. Raises ApiError."""
        more = max(0, size - self.FREE) - scope.get("held", 0)
        if more <= 0:
            return
        if self._n + more > self._n_max:
            raise ApiError(503, "server busy with other large requests, please try again", code="queue_full")
        self._n += more
        scope["held"] = scope.get("held", 0) + more

    def release(self, scope: Scope) -> None:
        self._n -= scope.pop("held", 0)
