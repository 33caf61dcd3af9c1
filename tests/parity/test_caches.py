# SPDX-License-Identifier: MIT
"""Tests that the same seed gives the same text on targets with unusual caches. Targets with a sliding window
or latent attention take trees. Targets with a recurrent state take chains, whether or not llama.cpp can
rewind the state.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglecpp
from helpers import tiny_arch
from helpers.models import Models
from helpers.tiny import prompt_ids

from .conftest import EXACT

N_TOKENS = 150
Opened = Callable[..., eaglecpp.Engine]


FORGETFUL = (tiny_arch.make_recurrent, tiny_arch.make_forgetful_hybrid)


@pytest.fixture(
    scope="module",
    params=[tiny_arch.make_windowed, tiny_arch.make_latent, tiny_arch.make_hybrid, *FORGETFUL],
    ids=["windowed", "latent", "hybrid", "recurrent", "forgetful"],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    made: Models = request.param(tmp_path_factory.mktemp("arch"))
    return made


def open_pair(pair: Models, **options: Any) -> eaglecpp.Engine:
    sizes: dict[str, Any] = {"n_ctx": 512, "n_threads": 1}
    return eaglecpp.Engine.open(pair.target, draft=pair.draft, **sizes, **EXACT, **options)


def test_closing_gaps_changes_no_text(tmp_path: Path) -> None:
    """Tests that closing gaps in the cache changes no text. Two conversations with a common prefix fill a
    small cache with rejected nodes, so the engine closes gaps at least ten times. Then one conversation goes
    back beyond the window.
    """
    pair, options = (
        tiny_arch.make_windowed(tmp_path),
        {"max_tokens": 300, "temperature": 0.9, "seed": 3, "ignore_eos": True},
    )
    prompts = [prompt_ids(60), [*prompt_ids(60)[:50], *prompt_ids(15)]]
    wide = {"n_sequences": 2, "n_leaves_max": 8, "n_draft_max": 48}
    with (
        open_pair(pair, **wide) as engine,
        eaglecpp.Engine.open(pair.target, n_ctx=512, n_threads=1) as plain,
    ):
        found = engine.generate_many(prompts, strategy="tree:k=8,depth=6,nodes=48", **options)
        expected = [plain.generate(prompt, **options) for prompt in prompts]
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        assert sum(one.timings.draft_n for one in found) > 5000
        back = [*prompts[0], *expected[0].tokens[:20]]
        assert engine.generate(back, **options).tokens == plain.generate(back, **options).tokens


def test_conversations_side_by_side_keep_the_bits_of_windows(tmp_path: Path) -> None:
    """Tests that conversations side by side keep their bits on targets with windows. llama.cpp may reuse
    cells that a window has passed, and the order of the cells changes the sums of attention.
    """
    target, texts = tiny_arch.make_windowed(tmp_path).target, ([*range(5, 195)] * 5, [*range(195, 5, -1)] * 5)
    options: dict[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 20, "n_probs": 1}
    sizes: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "planner_cache": False}
    with (
        eaglecpp.Engine.open(target, n_sequences=2, **sizes) as engine,
        eaglecpp.Engine.open(target, **sizes) as alone,
    ):
        first, second = engine.session(), engine.session()
        for session, prompt in ((second, texts[0]), (first, texts[0][:820]), (first, texts[1])):
            found = session.generate(prompt[:820], **options).logprobs
            assert found == alone.generate(prompt[:820], **options, cache_prompt=False).logprobs


def run(engine: eaglecpp.Engine, **options: Any) -> eaglecpp.Completion:
    engine.clear()
    return engine.generate(prompt_ids(40), max_tokens=N_TOKENS, ignore_eos=True, seed=1, **options)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_same_seed_same_tokens(pair: Models, temperature: float) -> None:
    assert tiny_arch.WINDOW < 40, "the window must be shorter than the prompt"
    with open_pair(pair) as engine:
        plain = run(engine, strategy="off", temperature=temperature)
        for strategy in ("chain:1", "chain:3", "chain:5", "tree:k=3,depth=4,nodes=12", "auto"):
            drafted = run(engine, strategy=strategy, temperature=temperature)
            assert drafted.tokens == plain.tokens, strategy
            if strategy != "auto":
                assert 0.0 < drafted.timings.acceptance_rate < 1.0
            if strategy.startswith("tree") and not engine.chains_only:
                assert drafted.timings.plan["nodes"] > 10
        assert (engine.chains_only == "") == (pair.target.stem in ("target-gemma3", "target-deepseek2"))


def test_a_prompt_that_leaves_the_text_is_answered_like_a_new_one(tmp_path: Path) -> None:
    """Tests prompts that leave the text of their conversation. Such prompts need care, because llama.cpp
    rewinds without an error to recurrent states that it has already overwritten.
    """
    target, options = tiny_arch.make_with_head(tmp_path, "qwen35"), {"strategy": "off", "ignore_eos": True}
    with eaglecpp.Engine.open(target, draft="mtp", n_ctx=512, n_threads=1, **EXACT) as engine:
        for n_back in (2, 3, 12):
            engine.clear()
            result = engine.generate([*range(20, 60)], temperature=0.0, max_tokens=24, **options)
            prompt = [*range(20, 60), *result.tokens[:-n_back], 7, 8, 9]
            found = engine.generate(prompt, temperature=0.0, max_tokens=16, **options)
            engine.clear()
            again = engine.generate(prompt, temperature=0.0, max_tokens=16, **options)
            assert again.tokens == found.tokens, n_back


def test_a_recurrent_state_takes_chains_and_the_report_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = "tree:k=3,depth=4,nodes=12"
    with open_pair(tiny_arch.make_hybrid(tmp_path), strategy=wanted) as hybrid:
        assert f"chain:4 instead of {wanted}" in caplog.text
        options: tuple[dict[str, Any], ...] = ({}, {"strategy": "chain:4"}, {"strategy": "auto"})
        tree, chain, auto = (run(hybrid, temperature=0.0, log_plan=True, **more) for more in options)
        why = hybrid.chains_only
    verified = [re.findall(r"nodes=\S+", "\n".join(done.plan_log)) for done in (tree, chain)]
    assert verified[0] == verified[1] != []
    assert tree.timings.plan["strategy"] == "chain:4"
    assert tree.timings.plan["why"] == f"instead of {wanted}: {why}" and "recurrent state" in why
    assert not any("leaves=" in line and "leaves=1" not in line for line in auto.plan_log)
    assert f"; chains only: {why}" in auto.timings.plan["why"]


def test_a_prompt_cancelled_near_its_end_is_kept(pair: Models) -> None:
    """Tests that the same prompt continues where a prompt was cancelled, and that a prompt with another end
    then reuses all but the last tokens.
    """
    seen: list[int] = []

    def cancel(n_done: int, n_prompt: int) -> None:
        seen.append(n_done)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with eaglecpp.Engine.open(pair.target, pair.draft, n_batch=512) as engine:
        prompt = engine.tokenize("ab cd ef gh " * 600)[:1686]
        with pytest.raises(KeyboardInterrupt):
            engine.generate(prompt, on_prefill=cancel)
        again = engine.generate(prompt, max_tokens=2, ignore_eos=True).timings.reused_n
        other = engine.generate([*prompt[:-1], prompt[0]], max_tokens=2).timings.reused_n
    assert (again, other >= len(prompt) - 10) == (seen[-1], True) and seen[-1] > 1500


forgetful = pytest.mark.parametrize("pair", FORGETFUL, indirect=True, ids=["recurrent", "hybrid"])


@forgetful
def test_tokens_lost_with_a_rejected_draft_are_run_again_in_their_own_round(pair: Models) -> None:
    with open_pair(pair) as engine:
        done = run(engine, strategy="chain:4", temperature=0.0, log_plan=True)
    rejected, n_again = False, 0
    for line, tokens in zip(done.plan_log, rounds_of(done), strict=True):
        again = line.startswith("plain") and "reason=replay" in line
        assert again == rejected, line
        n_again += again
        rejected = line.startswith("draft") and tokens < 1 + line.split("nodes=")[1].split()[0].count(",") + 1
    assert n_again > 10


def rounds_of(done: eaglecpp.Completion) -> list[int]:
    """Returns the tokens of each round. Accepted drafts belong to the round of the target's token that
    follows them. The first round is the prompt's.
    """
    counts, n = [], 0
    for accepted in done.accepted[1:]:
        n += 1
        if not accepted:
            counts.append(n)
            n = 0
    return counts + ([n] if n else [])


def test_a_conversation_continues_where_rows_were_lost(pair: Models) -> None:
    """Tests that a conversation continues correctly after answers of every length, some of which end on a
    rejected draft. The drafter must draft the same tokens as after reading the same text as a prompt.
    """
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 30}
    with open_pair(pair) as engine:
        for n in range(20, 28):
            engine.clear()
            prompt = prompt_ids(40)
            first = engine.generate(prompt, **options | {"max_tokens": n}, strategy="chain:3")
            longer = [*prompt, *first.tokens, *prompt_ids(5, seed=n)]
            more = engine.generate(longer, **options, strategy="chain:3")
            engine.clear()
            anew = engine.generate(longer, **options, strategy="chain:3")
            assert (more.tokens, more.accepted) == (anew.tokens, anew.accepted)
            engine.clear()
            assert more.tokens == engine.generate(longer, **options, strategy="off").tokens


@forgetful
def test_several_conversations_go_back_independently(pair: Models) -> None:
    prompts = [prompt_ids(30, seed=seed) for seed in range(3)]
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 60}
    with open_pair(pair, n_sequences=4) as engine:
        plain = [engine.generate(prompt, strategy="off", **options).tokens for prompt in prompts]
        engine.clear()
        found = engine.generate_many(prompts, strategy="chain:3", **options)
    assert [one.tokens for one in found] == plain
