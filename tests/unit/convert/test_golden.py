# SPDX-License-Identifier: MIT
"""What a tiny checkpoint converts to, key by key and tensor by tensor: nothing missing, nothing new.

`golden.json` holds every key's value (long arrays as SHA-256) and every tensor's type, shape and SHA-256. A
deliberate change of the output raises `CONVERTER_VERSION` and is recorded with
`python tests/unit/convert/test_golden.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from eaglecpp.convert import convert_checkpoint
from helpers.checkpoints import write_checkpoint
from helpers.random_drafter import DraftShape
from helpers.tiny import make_target

GOLDEN = Path(__file__).with_name("golden.json")
SHAPES = {
    "eagle3": ("eagle", DraftShape()),
    "eagle31": ("torchspec", DraftShape(fc_norm=True, norm_output=True, attention_bias=True, n_layers=2)),
}


def exact(value: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """The same shape with values that are the same on every platform and exact in bfloat16."""
    if value.dtype.kind != "f":
        return value
    numbers = (np.arange(value.size, dtype=np.int64) * 7919 + seed * 104729) % 255 - 127
    return (numbers / 128).astype(np.float32).reshape(value.shape)


def describe(name: str, directory: Path) -> dict[str, Any]:
    """Converts the tiny checkpoint and describes the file."""
    family, shape = SHAPES[name]
    weights = {key: exact(w, i) for i, (key, w) in enumerate(sorted(shape.weights().items()))}
    kept = np.arange(shape.n_draft_vocab) * 2 + np.arange(shape.n_draft_vocab) // 40
    weights["d2t"] = kept - np.arange(shape.n_draft_vocab)
    weights["t2d"] = np.isin(np.arange(shape.n_vocab), kept)
    checkpoint = write_checkpoint(directory / "golden-draft", "vllm", shape, add=weights)
    spelled = write_checkpoint(directory / "spelled", family, shape)
    if family != "vllm":  # the family's config, the exact weights under its names
        config = (spelled / "config.json").read_text(encoding="utf-8")
        (checkpoint / "config.json").write_text(config, encoding="utf-8")
        rename(checkpoint / "model.safetensors")
    target = make_target(directory)
    out = convert_checkpoint(checkpoint, target.gguf, directory / "out.gguf", "Q8_0").out
    reader = gguf.GGUFReader(out)
    keys = {key: value(field) for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    keys.pop("eaglecpp.source.sha256")  # of a safetensors file, whose layout is the library's business
    tensors = {
        t.name: [t.tensor_type.name, [int(n) for n in t.shape], hashlib.sha256(t.data.tobytes()).hexdigest()]
        for t in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


def rename(path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = {name.replace("layers.0.", "midlayer."): value for name, value in load_file(path).items()}
    save_file(weights, path)


def value(field: Any) -> Any:
    types = [kind.name for kind in field.types]
    found = field.contents()
    if isinstance(found, list) and len(found) > 8:
        found = hashlib.sha256(json.dumps(found).encode()).hexdigest()
    return [*types, found]


@pytest.mark.parametrize("name", SHAPES)
def test_the_file_is_what_it_was(name: str, tmp_path: Path) -> None:
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    found = json.loads(json.dumps(describe(name, tmp_path)))
    assert found["keys"] == expected["keys"]
    assert found["tensors"] == expected["tensors"]


def record() -> None:
    """Writes golden.json anew."""
    golden = {}
    for name in SHAPES:
        with tempfile.TemporaryDirectory() as directory:
            golden[name] = describe(name, Path(directory))
    text = re.sub(r"(?<=\[)\n +|\n {3,}(?=\])", "", json.dumps(golden, indent=1))
    GOLDEN.write_text(re.sub(r"\n {4,}", " ", text) + "\n", encoding="utf-8")  # a key or tensor on each line


if __name__ == "__main__":
    record()
