# SPDX-License-Identifier: MIT
"""Model names, in both directions."""

from __future__ import annotations

import pytest

from eaglecpp.modelfile import ModelName, ModelNameError

NAMES = [
    ("llama3.2:3b", "registry.ollama.ai/library/llama3.2/3b", "llama3.2:3b"),
    ("llama3.2", "registry.ollama.ai/library/llama3.2/latest", "llama3.2:latest"),
    ("me/m", "registry.ollama.ai/me/m/latest", "me/m:latest"),
    (
        "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF/Q4_K_M",
        "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
    ),
    ("hf.co/u/r:file.gguf", "hf.co/u/r/file.gguf", "hf.co/u/r:file.gguf"),
    ("localhost:5000/ns/m:t", "localhost:5000/ns/m/t", "localhost:5000/ns/m:t"),
    ("localhost:5000/ns/m", "localhost:5000/ns/m/latest", "localhost:5000/ns/m:latest"),
    ("http://h/ns/m:t", "h/ns/m/t", "http://h/ns/m:t"),
    ("x.gguf", "registry.ollama.ai/library/x.gguf/latest", "x.gguf:latest"),
    ("qwen3:4b:local", "registry.ollama.ai/library/qwen3/4b", "qwen3:4b"),
]


@pytest.mark.parametrize(("text", "path", "shown"), NAMES)
def test_names_and_their_manifest_paths(text: str, path: str, shown: str) -> None:
    name = ModelName.parse(text)
    assert "/".join(name.parts) == path
    assert str(name) == shown
    assert ModelName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["./x.gguf", "/a/b", "a b", "m:", ":t", "-x", "a.b/m", "a/b/c/d", "m:1:2", "@sha256:aa", "", "m" * 81],
)
def test_impossible_names_are_refused(text: str) -> None:
    with pytest.raises(ModelNameError, match="is not a model name: its"):
        ModelName.parse(text)


@pytest.mark.parametrize("text", ["qwen3:cloud", "gpt-oss:120b-cloud"])
def test_cloud_models_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ModelNameError, match="cloud"):
        ModelName.parse(text)


def test_case_does_not_tell_models_apart() -> None:
    assert ModelName.parse("Library/LLaMA3.2:3B").same_as(ModelName.parse("llama3.2:3b"))
    assert not ModelName.parse("llama3.2:3b").same_as(ModelName.parse("llama3.2:1b"))


def test_hub_names() -> None:
    assert ModelName.parse("HF.co/u/r").is_hub
    assert ModelName.parse("huggingface.co/u/r").is_hub
    assert not ModelName.parse("u/r").is_hub
