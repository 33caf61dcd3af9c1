# SPDX-License-Identifier: MIT
"""`eaglecpp serve` as a process of its own, for clients of its APIs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import DRAFT
from common import MODEL as TARGET

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.serve_process import free_port, start_server

MODEL = f"{Path(TARGET).stem}:latest"


@contextlib.contextmanager
def serving(*options: str, model: str = MODEL) -> Iterator[str]:
    """The address of a server. It has a store of its own, with `MODEL` in it, and ends with the block."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "EAGLECPP_MODELS": str(Path(home, "models"))}
        modelfile = Path(home, "Modelfile")
        modelfile.write_text(
            f"FROM {Path(TARGET).resolve()}\n" + (f"DRAFT {Path(DRAFT).resolve()}\n" if DRAFT else "")
        )
        create = [sys.executable, "-P", "-m", "eaglecpp", "create", MODEL, "-f", modelfile]
        subprocess.run(create, env=environment, check=True, stdout=sys.stderr)
        process = start_server(model, port, "-c", "1024", *options, output=None, environment=environment)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
    assert code == 0, f"the server ended with {code}"
