# SPDX-License-Identifier: MIT
"""The law: same seed, same tokens, with or without drafting, whatever the sampler.

On a tiny F32 pair whose drafter is right about half the time, so that rounds accept none, some and all
drafts. Where a token differs anyway, the failure says how close the call was in the plain run.
"""The law: same seed, same tokens, with or without drafting, whatever the sampler.

On a tiny F32 pair whose drafter is right about half the time, so that rounds accept none, some and all
drafts. With F32 caches and plain attention a batch of several rows gives the logits of single rows to about
1e-6, and all tokens must be equal; where one differs anyway, the failure says how close the call was.
Half-precision caches and flash attention round by batch shape and by the order of cells (about 1e-3), which
one draw in a thousand notices: there the log-probabilities are compared instead.
"""
    plain = engine.generate([*prompt, *tokens[:at]], max_tokens=1, temperature=0.0, strategy="off", n_probs=2)
    best, second = plain.logprobs[0].top[:2]
    return best[1] - second[1]


def run(engine: eaglecpp.Engine, prompt: list[int], **options: Any) -> eaglecpp.Completion:
    # a conversation without a past: prefix reuse would compare other batch shapes
    with engine.session() as session:
        return session.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True, seed=1, **options)


@pytest.mark.parametrize("name", SAMPLERS)
def test_same_seed_same_tokens(name: str, engine: eaglecpp.Engine) -> None:
    prompt, sampler = prompt_ids(40, seed=3), SAMPLERS[name]
    plain = run(engine, prompt, strategy="off", **sampler)
    assert len(plain.tokens) == N_TOKENS
    for strategy in STRATEGIES:
        drafted = run(engine, prompt, strategy=strategy, **sampler)
        parted = next(
            (i for i, (a, b) in enumerate(zip(plain.tokens, drafted.tokens, strict=True)) if a != b), None
        )
        if parted is not None:
            margin = closeness(engine, prompt, plain.tokens, parted)
            pytest.fail(f"{strategy}: token {parted} differs; logit margin there {margin:.2e}")
        assert drafted.text == plain.text
        assert drafted.stats.rounds < plain.stats.rounds, "nothing was accepted: the test would mean nothing"
        assert 0.0 < drafted.stats.acceptance_rate < 1.0


def test_another_seed_gives_other_tokens(engine: eaglecpp.Engine) -> None:
    """Otherwise equal tokens would say nothing about the seed."""
    with engine.session() as session:
        texts = {
            tuple(session.generate(prompt_ids(40), max_tokens=40, temperature=0.8, seed=seed).tokens)
            for seed in (1, 2, 3)
        }
    assert len(texts) == 3


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_the_law_holds_for_other_targets(arch: str, pairs: Callable[..., ConvertedPair]) -> None:
    with open_engine(pairs("eagle31", arch), **EXACT) as engine:
        for sampler in (SAMPLERS["greedy"], SAMPLERS["temperature"]):
            plain = run(engine, prompt_ids(40), strategy="off", **sampler)
            for strategy in STRATEGIES:
                drafted = run(engine, prompt_ids(40), strategy=strategy, **sampler)
                assert drafted.tokens == plain.tokens
                assert drafted.stats.draft_n_accepted > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_usual_caches_move_log_probabilities_little(
    strategy: str, pairs: Callable[..., ConvertedPair]
) -> None:
    with open_engine(pairs("eagle31", "llama")) as engine:
        plain = run(engine, prompt_ids(40), strategy="off", temperature=0.0, n_probs=10)
        drafted = run(engine, prompt_ids(40), strategy=strategy, temperature=0.0, n_probs=10)
    assert drafted.stats.draft_n_accepted > 0
    for i, (ours, theirs) in enumerate(zip(drafted.logprobs, plain.logprobs, strict=True)):
        expected = dict(theirs.top)
        gap = max(abs(logp - expected[token]) for token, logp in ours.top if token in expected)
        assert gap < 0.02, f"token {i}: log-probabilities are {gap:.1e} apart"
        if ours.token != theirs.token:  # from here on the two runs say different things
            assert theirs.top[0][1] - theirs.top[1][1] < 0.02
            break
