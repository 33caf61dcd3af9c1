# SPDX-License-Identifier: MIT
"""Targets: what is read from a GGUF and from a Hugging Face directory, and which tokenizers are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from eaglecpp.convert.errors import CheckpointError, GgufError, SourceError, TargetError, TokenizerError
from eaglecpp.convert.hf_tokenizer import build_tokenizer
from eaglecpp.convert.target_info import open_target
from helpers.tiny import TinyTarget

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def split(pattern: str) -> dict[str, Any]:
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [step, BYTES]}


def tokenizer(directory: Path, **changes: Any) -> Path:
    data: dict[str, Any] = {
        "added_tokens": [{"id": 2, "content": "<|end|>", "special": True},
                         {"id": 3, "content": "<x>", "special": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]},
    }  # fmt: skip
    data |= changes
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(data))
    return directory


def test_both_forms_of_a_target_say_the_same(target: TinyTarget) -> None:
    a, b = open_target(target.gguf), open_target(target.directory)
    for fact in ("hidden_size", "block_count", "vocab_size", "eos_token_id"):
        assert getattr(a, fact) == getattr(b, fact) is not None
    assert a.head is not None
    assert b.head is not None
    assert (a.head.row(7) == b.head.row(7)).all()


@pytest.mark.parametrize(
    ("pre_tokenizer", "ignore_merges", "expected"),
    [
        ({"type": "ByteLevel", "add_prefix_space": False}, False, b"gpt-2"),
        (split(LLAMA3), True, b"llama-bpe"),
        (split(LLAMA3), False, b"smaug-bpe"),
        (split(QWEN2), False, b"qwen2"),
        (split(GPT4O), False, b"gpt-4o"),
    ],
)
def test_known_patterns_get_llama_cpps_name(
    pre_tokenizer: Any, ignore_merges: bool, expected: bytes, tmp_path: Path
) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"], "ignore_merges": ignore_merges}
    fields = build_tokenizer(tokenizer(tmp_path / "t", pre_tokenizer=pre_tokenizer, model=model), 4)
    assert {f.name: f.value for f in fields}["tokenizer.ggml.pre"] == expected


def test_token_types_and_padding(tmp_path: Path) -> None:
    fields = {f.name: f.value for f in build_tokenizer(tokenizer(tmp_path / "t"), 6)}
    assert fields["tokenizer.ggml.tokens"] == [b"a", b"b", b"<|end|>", b"<x>", b"[PAD4]", b"[PAD5]"]
    kinds = gguf.TokenType
    assert fields["tokenizer.ggml.token_type"] == [
        kinds.NORMAL, kinds.NORMAL, kinds.CONTROL, kinds.USER_DEFINED, kinds.UNUSED, kinds.UNUSED,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "Unigram"}}, "expected a byte-level BPE tokenizer, found Unigram"),
        ({"model": {"type": "BPE", "byte_fallback": True}}, "expected a byte-level BPE"),
        ({"model": None}, "expected a byte-level BPE"),
        ({"normalizer": {"type": "Replace"}}, "normalizer 'Replace' is not supported"),
        ({"pre_tokenizer": split(r"\w+")}, r"unknown pre-tokenizer"),
        ({"pre_tokenizer": None}, "unknown pre-tokenizer"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "with add_prefix_space"),
        ({"added_tokens": [{"id": 4000, "content": "z"}]}, "token 'z' has id 4000"),
        ({"added_tokens": [{"id": 3}]}, "malformed: KeyError"),
        ({"added_tokens": 3}, "malformed: TypeError"),
        ({"normalizer": "NFC"}, "malformed: AttributeError"),
        ({"model": {"type": "BPE", "vocab": ["a"]}}, "malformed: AttributeError"),
    ],
)
def test_other_tokenizers_are_refused_with_advice(changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        build_tokenizer(tokenizer(tmp_path / "t", **changes), 8)
    assert "--target model.gguf" in str(caught.value) or "4000" in message


def test_a_directory_without_tokenizer_or_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_target(tmp_path)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not found"):
        build_tokenizer(tmp_path, 4)


def head_only(path: Path, arch: str, **keys: int) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for name, value in keys.items():
        writer.add_uint32(f"{arch}.{name}", value)
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def test_prediction_layers_are_not_blocks_of_the_target(tmp_path: Path) -> None:
    path = head_only(
        tmp_path / "x.gguf", "glm4moe", block_count=47, nextn_predict_layers=1, embedding_length=8
    )
    assert open_target(path).block_count == 46


@pytest.mark.parametrize("arch", ["eagle3", "eagle31", "clip"])
def test_a_drafter_or_projector_is_no_target(arch: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=f"expected a target model, found architecture '{arch}'"):
        open_target(head_only(tmp_path / "x.gguf", arch, block_count=1, embedding_length=8))


@pytest.mark.parametrize("keys", [{"block_count": 2}, {"block_count": 0, "embedding_length": 8}])
def test_a_target_without_sizes(keys: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="expected a positive integer"):
        open_target(head_only(tmp_path / "x.gguf", "llama", **keys))


def test_nothing_that_exists(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected the target as a GGUF file"):
        open_target(tmp_path / "none.gguf")
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(GgufError, match="not a GGUF file"):
        open_target(tmp_path / "x.gguf")
