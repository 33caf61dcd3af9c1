# SPDX-License-Identifier: MIT
"""llama.cpp itself loads our `eagle3` files and refuses our `eagle31` ones, in a child process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.convert import convert_checkpoint
from helpers.checkpoints import write_checkpoint
from helpers.random_drafter import DraftShape
from helpers.tiny import TinyTarget, make_target

LOAD = """
import ctypes, sys
import llama_cpp.llama_cpp as lib

params = lib.llama_model_default_params()
params.use_extra_bufts = False  # repacked weights would use AMX, which some virtual machines only promise
model = lib.llama_model_load_from_file(sys.argv[1].encode(), params)
if not model:
    sys.exit("refused")
text = ctypes.create_string_buffer(64)
lib.llama_model_meta_val_str(model, b"general.architecture", text, len(text))
print(text.value.decode(), lib.llama_model_n_embd(model), lib.llama_model_n_layer(model),
      lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)), lib.llama_model_n_params(model))
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def load(target: TinyTarget, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Converts a drafter and lets llama.cpp load it."""

    def run(shape: DraftShape, type: str = "F16", **edit: Any) -> subprocess.CompletedProcess[str]:
        checkpoint = write_checkpoint(tmp_path / "in", "vllm", shape, edit=edit)
        report = convert_checkpoint(checkpoint, target.gguf, tmp_path / "draft.gguf", type)
        command = [sys.executable, "-P", "-c", LOAD, str(report.out)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.mark.parametrize(
    ("shape", "type"),
    [
        (DraftShape(), "Q8_0"),
        (DraftShape(norm_before_fc=True, norm_before_residual=True), "F16"),
        (DraftShape(n_draft_vocab=367, own_head=False, own_embedding=False), "F16"),
        (DraftShape(rope={"rope_type": "linear", "factor": 2.0}), "BF16"),
        (
            DraftShape(rope={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}),
            "F16",
        ),
    ],
    ids=["Q8_0", "norms", "shared", "linear", "yarn"],
)
def test_llama_cpp_loads_plain_eagle3(
    shape: DraftShape, type: str, load: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    child = load(shape, type)
    assert child.returncode == 0, child.stderr[-2000:]
    arch, n_embd, n_layer, n_vocab, _ = child.stdout.split()
    assert (arch, int(n_embd), int(n_layer), int(n_vocab)) == ("eagle3", 64, 1, 367)


@pytest.mark.parametrize(
    "shape",
    [
        DraftShape(fc_norm=True),
        DraftShape(norm_output=True),
        DraftShape(qk_norm=True),
        DraftShape(n_layers=2),
        DraftShape(window=64),
    ],
    ids=["fc_norm", "norm_output", "qk_norm", "two layers", "sliding"],
)
def test_llama_cpp_refuses_everything_it_would_run_wrong(
    shape: DraftShape, load: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    child = load(shape)
    assert child.returncode == 1, (child.returncode, child.stderr[-2000:])
    assert "unknown model architecture: 'eagle31'" in child.stderr
