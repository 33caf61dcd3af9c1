# SPDX-License-Identifier: MIT
"""Tests that options are validated and declared consistently, and that strategies survive the conversion to
text and back.
"""

from __future__ import annotations

import ast
import dataclasses
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.engine.request import OF_CHAT, OF_STREAM
from eaglecpp.human import human_bytes, n_bytes_of
from eaglecpp.modelfile.parameters import PARAMETERS
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, Strategy, describe, split

CLASSES = (ModelOptions, DraftOptions, SamplingOptions)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_default_passes_its_own_check(cls: type) -> None:
    assert {option.name: option.default for option in describe(cls)} == dataclasses.asdict(cls())


def test_names_flags_and_parameters_are_unique() -> None:
    options = [option for cls in CLASSES for option in describe(cls)]
    for values in (
        [option.name for option in options],
        [flag for option in options for flag in option.flags],
        [option.parameter for option in options if option.parameter],
    ):
        assert len(values) == len(set(values))


@pytest.mark.parametrize(
    ("cls", "values", "error", "text"),
    [
        (SamplingOptions, {"temperature": -0.1}, ValueError, "temperature must be at least 0; got -0.1"),
        (SamplingOptions, {"temperature": float("nan")}, ValueError, "temperature must be a finite number"),
        (SamplingOptions, {"temperature": 1e39}, ValueError, "temperature must be a finite number"),
        (SamplingOptions, {"top_p": 1.5}, ValueError, "top_p must be between 0 and 1; got 1.5"),
        (SamplingOptions, {"top_k": True}, TypeError, "top_k must be int, got bool True"),
        (SamplingOptions, {"temperature": "hot"}, TypeError, "temperature must be float, got str 'hot'"),
        (SamplingOptions, {"stop": ["a", ""]}, ValueError, "a stop string is empty"),
        (SamplingOptions, {"stop": [1]}, TypeError, "stop must contain strings, got int 1"),
        (SamplingOptions, {"logit_bias": {"x": 1.0}}, TypeError, "logit_bias must map int to float"),
        (SamplingOptions, {"logit_bias": {3: float("nan")}}, ValueError, "expected finite numbers"),
        (ModelOptions, {"lora": {"a.gguf": float("inf")}}, ValueError, "expected finite numbers"),
        (ModelOptions, {"n_threads": 100_000}, ValueError, "n_threads must be between 0 and 512; got"),
        (ModelOptions, {"flash_attn": "yes"}, ValueError, "flash_attn must be one of auto, on, off; got"),
        (ModelOptions, {"use_mmap": 1}, TypeError, "use_mmap must be bool, got int 1"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    cls: type, values: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        cls(**values)
    assert text in str(caught.value)


def test_values_that_convert_without_loss_are_accepted() -> None:
    options = SamplingOptions(
        temperature=1, top_k=np.int64(5), top_p=np.float32(0.5), stop="x", logit_bias={7: 1, np.int32(8): -2}
    )
    assert (options.temperature, options.top_k, options.stop) == (1.0, 5, ("x",))
    assert type(options.temperature) is float
    assert options.logit_bias == ((7, 1.0), (8, -2.0))


@pytest.mark.parametrize("seed", [None, -1, 0xFFFFFFFF, 0, 7, -5, 12345678901, 2**64 - 1])
def test_which_seeds_mean_a_random_one(seed: int | None) -> None:
    random = seed in (None, -1, 0xFFFFFFFF)
    assert SamplingOptions(seed=seed).wants_random_seed is random
    assert PARAMETERS["seed"].fitted(seed or 0) == (seed or 0)
    assert seed is None or random or SamplingOptions.fixed_seed(seed) not in SamplingOptions.RANDOM_SEEDS


def test_split_sorts_by_class_and_names_the_nearest_for_a_typo() -> None:
    assert split({"n_ctx": 8, "top_k": 3}, ModelOptions, SamplingOptions) == [{"n_ctx": 8}, {"top_k": 3}]
    with pytest.raises(TypeError, match="unknown option 'temprature'; did you mean 'temperature'"):
        split({"temprature": 1}, SamplingOptions)


strategies_text = st.one_of(
    st.sampled_from(["auto", "off"]),
    st.integers(1, 64).map(lambda depth: f"chain:{depth}"),
    st.tuples(st.integers(1, 16), st.integers(1, 16), st.integers(0, 48)).map(
        lambda t: f"tree:k={t[0]},depth={t[1]},nodes={t[1] + t[2]}"
    ),
)


@given(strategies_text)
def test_a_strategy_survives_text_and_back(text: str) -> None:
    strategy = Strategy.parse(text)
    assert str(strategy) == text
    assert Strategy.parse(strategy) is strategy


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 40))
def test_the_leaf_bound_holds_for_the_leafiest_tree(k: int, depth: int, more: int) -> None:
    nodes = depth + more
    # The nodes are filled breadth first, with k children each. No tree with as many nodes has more leaves.
    children = [0]
    while len(children) <= nodes:
        children[next(i for i, n in enumerate(children) if n < k)] += 1
        children.append(0)
    assert children.count(0) == Strategy.parse(f"tree:k={k},depth={depth},nodes={nodes}").n_leaves


WRONG = """
    Auto auto:3 off: chain chain: chain:0 chain:-1 chain:x chain:5,6 tree tree:k=4,depth=5
    tree:k=4,depth=5,nodes=4 tree:k=0,depth=5,nodes=9 tree:k=4,k=4,nodes=16
    tree:k=4,depth=5,nodes=16,x=1 tree:xk=4,depth=5,nodes=16 chain:1025 tree:k=4,depth=5,nodes=1025
"""


@pytest.mark.parametrize("text", ["", *WRONG.split()])
def test_a_wrong_strategy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="strategy"):
        Strategy.parse(text)


def test_the_types_of_keywords_are_those_of_the_declarations() -> None:
    docs = Path(__file__).parents[2] / "docs"
    module = runpy.run_path(str(docs / "generate_options.py"))
    text = module["PAGE"].read_text(encoding="utf-8")
    assert module["source"]() == text, "run: python docs/generate_options.py"
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    fields = {
        one.name: {ast.unparse(line.target) for line in one.body if isinstance(line, ast.AnnAssign)}
        for one in classes
    }
    assert fields["GenerateKeywords"] | {"grammar"} == OF_STREAM
    assert OF_STREAM | fields["ChatKeywords"] == OF_CHAT


def test_shares_are_numbers_in_any_form() -> None:
    for given_ in ("3,1", [3, 1], (3.0, 1.0), "3, 1"):
        assert ModelOptions(tensor_split=given_).tensor_split == (3.0, 1.0)  # type: ignore[arg-type]
    assert ModelOptions(tensor_split="").tensor_split == ()  # type: ignore[arg-type]
    for wrong in ("a,b", [None], 3):
        with pytest.raises(TypeError, match="tensor_split"):
            ModelOptions(tensor_split=wrong)  # type: ignore[arg-type]
    for wrong in ("0,0", "-1,2", [float("nan")]):
        with pytest.raises(ValueError, match="tensor_split must contain numbers of at least 0"):
            ModelOptions(tensor_split=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n_bytes", "said"),
    [(None, "?"), (512, "512 B"), (1000, "1.0 KB"), (98_362_432, "98 MB"), (4_683_073_184, "4.7 GB")],
)
def test_a_size_is_printed_and_read_in_powers_of_1000(n_bytes: int | None, said: str) -> None:
    assert human_bytes(n_bytes) == said
    assert n_bytes is None or n_bytes_of(said) == pytest.approx(n_bytes, rel=0.01)
    assert [n_bytes_of(text) for text in ("2k", "1.5 MB", "1MiB", "7")] == [2000, 1_500_000, 1 << 20, 7]
    with pytest.raises(ValueError, match="expected a size such as"):
        n_bytes_of("9" * 400)
