# SPDX-License-Identifier: MIT
"""Checks eaglecpp's assumptions about the pinned llama.cpp beyond its public headers (docs/internals.md lists
them).

The symbols are looked up in the installed library. All other checks need llama.cpp's sources in
EAGLECPP_LLAMA_SOURCE, which tests/newest.py sets. tests/native/ggml_hook/test_abi.cpp has the checks that a
compiler can make.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from eaglecpp.engine import rpc_relay

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = os.environ.get("EAGLECPP_LLAMA_SOURCE", "")
needs_sources = pytest.mark.skipif(not SOURCES, reason="EAGLECPP_LLAMA_SOURCE is not set")


def ours(name: str) -> str:
    return (NATIVE / name).read_text(encoding="utf-8")


def test_each_rule_of_the_ablation_is_in_the_planner() -> None:
    rules = tomllib.loads((NATIVE.parent / "tests" / "planner_rules.toml").read_text())["rule"]
    assert [rule["name"] for rule in rules if ours(f"algo/{rule['file']}").count(rule["from"]) != 1] == []


def theirs(name: str) -> str:
    return (Path(SOURCES) / name).read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="names as mangled by GNU's compiler")
def test_functions_called_by_name_are_exported() -> None:
    import llama_cpp

    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libllama.so*"))))
    names = re.findall(r'"(_Z\w+)"', ours("target/llama_bridge.cpp"))
    # this function has another name with libc++
    names.remove("_Z29llama_internal_get_tensor_mapPK11llama_model")
    assert len(names) == 10
    assert [name for name in names if not hasattr(library, name)] == []


@needs_sources
def test_architectures_that_record_layer_inputs() -> None:
    (listed,) = re.findall(r"names = \{(.*?)\};", ours("target/llama_bridge.cpp"), re.S)
    names = set(re.findall(r'"([\w-]+)"', listed))
    known = dict(re.findall(r'\{ *(LLM_ARCH_\w+), *"([\w-]+)" *\}', theirs("src/llama-arch.cpp")))
    assert names <= set(known.values())
    recording = {
        path.stem
        for path in (Path(SOURCES) / "src" / "models").glob("*.cpp")
        if "t_layer_inp" in path.read_text(encoding="utf-8")
    }
    files = {"gpt-oss": "openai-moe", "nemotron_h": "nemotron-h", "hunyuan_vl": "hunyuan-vl"}
    assert recording <= {files.get(name, name) for name in names}, "expected all recording architectures"
    inherited = {"qwen3next", "lfm2moe", "hunyuan-dense", "nemotron_h_moe"}
    assert {files.get(name, name) for name in names - inherited} <= recording, "expected layer inputs"


@needs_sources
def test_a_head_needs_the_tensors_that_its_file_must_have() -> None:
    """Checks the assertions in llama.cpp's graphs of heads. A new assertion would end the process instead of
    refusing the file.
    """
    (table,) = re.findall(r"rules = \{\n(.*?)\n    \};", ours("target/heads.cpp"), re.S)
    rules = dict(re.findall(r'\{"([\w-]+)", \{(.*?)\}\},?$', table, re.M))
    files = {"glm4moe": "glm4-moe", "hy_v3": "hy-v3", "nemotron_h_moe": "nemotron-h-moe"}
    allowed = {"hparams.n_layer_nextn", "cparams.nextn_layer_offset", "head_norm_w", "head_w"}
    allowed |= {f"layer.nextn.{name}" for name in ("eh_proj", "enorm", "hnorm")}
    # Without these tensors, the loader refuses the file, or an assertion fails while the context is created.
    # eaglecpp catches assertions at this point.
    allowed |= {"layer.ffn_gate_inp", "layer.nextn.shared_head_norm", "ext_factor", "hparams.is_mla"}
    allowed |= {"hparams.f_attn_temp_scale", "n_embd_head_qk_nope", "hparams.n_lora_q", "has_split_exps"}
    allowed |= {"layer.ffn_norm", "ubatch.token", "tok_embd_w", "hparams.n_embd_out"}
    allowed |= {f"layer.{name}" for name in ("wq_a", "wq_b", "wkv_a_mqa", "wk_b", "attn_kv_a_norm")}
    allowed |= {f"layer.{name}" for name in ("attn_q_a_norm", "ffn_down_exps", "wqkv", "ffn_gate")}
    allowed |= {f"layer.ffn_{name}_shexp" for name in ("gate", "down", "up")}
    for name, rule in rules.items():
        source = theirs(f"src/models/{files.get(name, name)}.cpp")
        graph = source[source.index("graph_mtp::graph_mtp(") :].partition("\n}\n")[0]
        asked = set(re.findall(r"GGML_ASSERT\(\(?(?:uint32_t\) )?([\w.]+)", graph)) - {"il"}
        has_several, gives_outputs, has_equal_sizes = (
            ["true" in part for part in (*rule.split(", "), "", "", "")][:3] if rule else [False] * 3
        )
        assert has_equal_sizes == ("n_embd_head == hparams.n_embd_head_k()" in graph), name
        assert has_several == ("n_layer_nextn == 1" not in graph and "nextn_layer_offset" in graph), name
        assert asked - {"n_embd_head"} <= allowed, name
        # The graphs in llama.cpp must drop the rows without output before the states get their name.
        before = graph[: graph.rindex("res->t_h_nextn")]
        drops = re.search(r"ggml_get_rows\(ctx0, (cur|flat), +inp_out_ids\)", before)
        assert gives_outputs == (drops is not None and "embeddings_nextn_masked" not in graph), name
    assert "a batch can carry both" in theirs("src/llama-batch.cpp")


@needs_sources
def test_a_row_is_added_after_the_logits_for_samplers_on_a_device() -> None:
    graph = theirs("src/llama-graph.cpp")
    assert "ggml_pad(ctx0, res->t_logits, 0, 1, 0, 0)" in graph
    assert re.search(
        r"ggml_view_1d\(ctx0, logits_t, logits_t->ne\[0\], rows\[i\] \* logits_t->nb\[1\]\)", graph
    )


@needs_sources
def test_the_commands_of_rpc_have_their_numbers() -> None:
    assert re.findall(r"RPC_PROTO_\w+_VERSION +(\d+)", theirs("ggml/include/ggml-rpc.h")) == [
        str(number) for number in rpc_relay.GREETING
    ]
    (enum,) = re.findall(r"enum rpc_cmd \{(.*?)\};", theirs("ggml/src/ggml-rpc/ggml-rpc.cpp"), re.S)
    numbers = {name.lower(): i for i, name in enumerate(re.findall(r"RPC_CMD_(\w+)", enum))}
    for command in rpc_relay.RpcCmd:
        assert numbers[command.name.lower()] == command, command
