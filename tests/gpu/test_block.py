# SPDX-License-Identifier: MIT
"""Trained block drafters on a device: the texts of plain decoding, several at a time, and few waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eaglecpp

from .conftest import SIZES, Device

TESTS = Path(__file__).parents[1]
TARGET = TESTS.parent / "examples" / "demo_model" / "pair" / "demo-target.gguf"
CHATS = [
    [{"role": "user", "content": question}]
    for question in ("Explain math.sqrt.", "What is in the module json?", "Who are you?")
]


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
def test_the_texts_are_the_plain_ones(kind: str, device: Device) -> None:
    options: dict[str, Any] = SIZES | {"n_sequences": 3, "draft_device": device.name}
    draft = TESTS / "fixtures" / f"demo-{kind}.gguf"
    with eaglecpp.Engine.open(TARGET, draft=draft, **options) as engine:
        for temperature in (0.0, 0.8):
            more: dict[str, Any] = {"max_tokens": device.n_tokens, "temperature": temperature, "seed": 3}
            plain = [engine.chat(chat, strategy="off", **more).tokens for chat in CHATS]
            for strategy in device.some(["chain:4", "tree:k=3,depth=4,nodes=8", "auto"]):
                found = engine.generate_many(CHATS, strategy=strategy, **more)
                if device.is_exact:
                    assert [one.tokens for one in found] == plain
                accepted = sum(one.timings.draft_n_accepted for one in found)
                assert strategy == "auto" or accepted > 0
