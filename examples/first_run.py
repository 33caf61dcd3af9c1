# SPDX-License-Identifier: MIT
"""Makes a tiny model and an EAGLE 3.1 checkpoint for it, converts the checkpoint and generates text.

python examples/first_run.py [FOLDER]

The weights are random, but chosen so that the drafter often guesses right; the text is noise. Use the same
commands for your own model: `eaglecpp convert CHECKPOINT --target TARGET.gguf` and `eaglecpp generate
TARGET.gguf --draft DRAFT.gguf -p "..."`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def eaglecpp(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "eaglecpp", *map(str, arguments)]
    print("$ eaglecpp", *arguments, file=sys.stderr)
    # The command runs outside the checkout, because the checkout's folder `eaglecpp` has no compiled
    # extension.
    return subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, cwd=tempfile.gettempdir()
    ).stdout


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="eaglecpp-")).resolve()
    make = [sys.executable, str(ROOT / "tests/helpers/tiny.py"), str(folder), "eagle31"]
    pair = json.loads(subprocess.run(make, check=True, text=True, stdout=subprocess.PIPE).stdout)
    target, draft = Path(pair["target"]), folder / "draft.gguf"
    eaglecpp("convert", pair["checkpoint"], "--target", target, "-o", draft)

    options = ("-p", "once upon a time", "-n", "200", "--temp", "0", "--json")
    plain = json.loads(eaglecpp("generate", target, "--no-draft", *options))
    drafted = json.loads(eaglecpp("generate", target, "--draft", draft, "--strategy", "chain:4", *options))
    if plain["tokens"] != drafted["tokens"]:
        sys.exit("drafting changed the tokens; please report this")
    timings = drafted["timings"]
    print(f"{folder}: the same {len(drafted['tokens'])} tokens with and without the drafter")
    forwards = f"{timings['rounds']} target forwards instead of {plain['timings']['rounds']}"
    print(f"acceptance length {timings['acceptance_length']:.2f}: {forwards}")


if __name__ == "__main__":
    main()
