# SPDX-License-Identifier: MIT
"""Tests RPC servers that die in the middle of an answer. The engine raises one clear error, and the process
survives.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.script import run_script
from helpers.tiny import ConvertedPair
from helpers.tiny_arch import make_head_file, make_with_assistant, make_with_head

from .conftest import SERVERS

pytestmark = pytest.mark.skipif(
    SERVERS == 0, reason="no RPC server is running; `python tests/run.py gpu` starts servers"
)

BEGIN = """
import sys
sys.path.insert(0, sys.argv[3])
from eaglecpp import Engine
from helpers.rpc_server import RpcServer

target, draft = sys.argv[1:3]
"""


def run(program: str, target: object, draft: object) -> str:
    """Runs a program and returns its output."""
    done = run_script(BEGIN + program, target, draft, Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PROGRAM = """
from eaglecpp.errors import EngineBrokenError

options = dict(n_ctx=512, n_threads=1, planner_cache=False)
prompt, greedy = [5] * 40, dict(max_tokens=30, temperature=0.0, ignore_eos=True, strategy="chain:4")
with Engine.open(target, draft, **options) as engine:
    expected = engine.generate(prompt, **greedy).tokens

kept, lost = RpcServer(), RpcServer()
engine = Engine.open(target, draft, rpc=(kept.endpoint, lost.endpoint), **options)
assert engine.generate(prompt, **greedy).tokens == expected
print(engine.device_info["target"])
try:
    with engine.stream([7] * 60, max_tokens=400, temperature=0.0, ignore_eos=True) as stream:
        next(stream)
        next(stream)
        lost.kill()
        for _ in stream:
            pass
    raise SystemExit("nothing was said")
except EngineBrokenError as error:
    print(error)
try:
    engine.generate(prompt, **greedy)
    raise SystemExit("the engine went on")
except EngineBrokenError:
    pass
engine.close()

# without the lost server, with the one that is left
with Engine.open(target, draft, rpc=(kept.endpoint,), **options) as engine:
    assert engine.generate(prompt, **greedy).tokens == expected
# the same server again
again = RpcServer(lost.port)
with Engine.open(target, draft, rpc=(kept.endpoint, lost.endpoint), **options) as engine:
    assert engine.generate(prompt, **greedy).tokens == expected
# gone before anything is loaded
again.kill()
try:
    Engine.open(target, draft, rpc=(lost.endpoint,), **options)
except EngineBrokenError as error:
    print(error)
except Exception as error:
    print(type(error).__name__, error)
kept.kill()
print("lived on")
"""


def test_a_lost_server_is_one_error_and_no_crash(it: ConvertedPair, servers: tuple[str, ...]) -> None:
    lines = run(PROGRAM, it.pair.target.gguf, it.draft).splitlines()
    assert "RPC0" in lines[0] and "RPC1" in lines[0]
    assert "RPC server 127.0.0.1:" in lines[1] and "was lost: " in lines[1]
    assert "Start the server and open the engine again" in lines[1]
    assert lines[-1] == "lived on"


HEADS = """
server = RpcServer()
options = {"rpc": (server.endpoint,), "n_ctx": 256, "n_threads": 1, "planner_cache": False}
texts = []
for draft in (None, draft):
    with Engine.open(target, draft, **options) as engine:
        assert any(place["device"] == "RPC0" for place in engine.memory_plan)
        strategy = "off" if draft is None else "chain:2"
        done = engine.generate([5] * 20, max_tokens=40, temperature=0.0, ignore_eos=True, strategy=strategy)
        texts.append(done.tokens)
assert texts[0] == texts[1]
print("accepted" if done.timings.draft_n_accepted > 0 else "none")
"""


@pytest.mark.parametrize("kind", ["glm4moe", "qwen35", "hy_v3", "file", "gemma4"])
def test_heads_draft_for_a_target_on_a_server(servers: tuple[str, ...], tmp_path: Path, kind: str) -> None:
    """Tests drafting for a target on an RPC server: with one head and with two heads, in the target's file
    and in a separate file, and with an assistant that reads cells on the server.
    """
    draft: Path | str = "mtp"
    if kind == "gemma4":
        target, draft = make_with_assistant(tmp_path)
    else:
        target = make_with_head(tmp_path, "hy_v3" if kind == "file" else kind)
        if kind == "file":
            draft = make_head_file(tmp_path, "hy_v3")
    assert run(HEADS, target, draft) == "accepted\n"
