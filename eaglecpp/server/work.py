# SPDX-License-Identifier: MIT
"""`Work`: which threads of the server do what. Everything that blocks, and everything that takes longer than
some milliseconds, runs in one of these, or in those that each engine has for its prompts and vectors
(`eaglecpp.engine.AsyncEngine`); so no kind of slow request keeps the others waiting.
"""

from __future__ import annotations

from eaglecpp.threads import Threads


class Work:
    """names:     what the name of a model stands for, which every request asks
    loading:   opening of models, one after another
    files:     lists and facts of models, uploads, changes of the store
    downloads: pulls and creations, which may take hours; no further one is accepted while all are busy
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
