# SPDX-License-Identifier: MIT
"""Prices of rows on GPUs that are known before anything was measured."""

from __future__ import annotations

import pytest

from eaglecpp.engine.row_classes import Card, card_of


@pytest.mark.parametrize(
    ("name", "description", "weights", "rows"),
    [
        ("CUDA0", "NVIDIA GeForce RTX 3090", "Q4_K", (2, 8)),
        ("CUDA1", "NVIDIA GeForce RTX 4090", "Q3_K", (2, 6)),
        ("CUDA0", "NVIDIA GeForce RTX 5090", "Q6_K", (2, 7)),
        ("CUDA0", "Orin", "Q4_K", (1, 1)),
        ("CUDA0", "Orin", "Q8_0", (2, 8)),
        ("CUDA0", "Tesla V100-SXM2-16GB", "Q4_K", (2, 5)),
        ("CUDA0", "NVIDIA GB10", "Q2_K", (2, 6)),
        ("ROCm0", "AMD Instinct MI300X", "Q4_K", (2, 3)),
        ("ROCm0", "AMD Instinct MI210", "Q6_K", (2, 5)),
        ("ROCm0", "AMD Instinct MI250X/MI250", "Q8_0", (2, 8)),
        ("ROCm0", "AMD Instinct MI100", "Q4_K", (2, 2)),
        ("ROCm0", "AMD Instinct MI100", "Q8_0", (2, 6)),
        ("ROCm0", "AMD Instinct MI60 / MI50", "Q4_K", (2, 8)),
        ("ROCm0", "AMD Radeon RX 7900 XTX", "Q4_K", (2, 8)),
        ("Vulkan0", "AMD Radeon RX 7900 XTX (RADV NAVI31)", "Q4_K", (2, 8)),
        ("MTL0", "Apple M4 Pro", "Q8_0", (2, 8)),
        ("Metal", "Apple M1", "Q4_K", (4, 8)),
        ("MTL0", "Apple M4", "IQ4_XS", (1, 1)),
    ],
)
def test_rows_that_share_the_reading_of_weights(
    name: str, description: str, weights: str, rows: tuple[int, int]
) -> None:
    card = card_of(name, description, weights)
    assert card is not None and card.cheap_rows == rows
    assert card.ratio(1) == 1.0
    first, last = rows
    assert card.ratio(last + 1) >= card.ratio(last)
    if first > 1:
        assert card.ratio(first) / first < card.ratio(first - 1) / (first - 1)


@pytest.mark.parametrize(
    ("card", "measured"),
    [
        (Card("cuda", "", "Q4_0"), {2: 1.12, 4: 1.33, 8: 2.14, 16: 2.16}),
        (Card("cuda", "", "Q8_0"), {2: 1.07, 4: 1.28, 8: 1.72, 9: 3.88}),
        (Card("cuda", "", "Q8_0"), {2: 1.20, 4: 1.34, 8: 1.99, 9: 3.21}),
        (Card("metal", "", "Q3_K"), {8: 6.5}),
        (Card("metal", "", "Q4_0"), {2: 1.81}),
        (Card("metal", "", "BF16"), {8: 1.60}),
        (Card("metal", "m5", "Q4_0"), {2: 1.24, 4: 1.63, 8: 2.25, 16: 2.6}),
    ],
)
def test_prices_are_near_those_that_others_measured(card: Card, measured: dict[int, float]) -> None:
    for n_rows, ratio in measured.items():
        assert card.ratio(n_rows) == pytest.approx(ratio, rel=0.25), n_rows


def test_nothing_is_known_of_other_backends() -> None:
    assert card_of("MUSA0", "Moore Threads S80", "Q4_K") is None
    assert card_of("SYCL0", "Intel Arc", "Q4_K") is None
    assert card_of("RPC0", "127.0.0.1:50052", "Q4_K") is None
