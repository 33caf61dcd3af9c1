# SPDX-License-Identifier: MIT
"""`Server`: what all requests share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from eaglecpp.server.catalog import Library
from eaglecpp.server.config import ServerConfig
from eaglecpp.server.metrics import Metrics
from eaglecpp.server.models import ModelPool

__all__ = ["Server"]


class Server:
    """files: GGUF files served under a name."""

    def __init__(self, config: ServerConfig, files: Mapping[str, Path]) -> None:
        self.config = config
        self.metrics = Metrics()
        self.pool = ModelPool(config, self.metrics, files)
        self.library = Library(files)
        self.started = time.time()
