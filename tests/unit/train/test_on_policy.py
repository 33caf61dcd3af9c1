# SPDX-License-Identifier: MIT
"""What a drafter learns from rejected drafts: recorded by the engine, found by text, run beside its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from eaglecpp import Engine
from eaglecpp.errors import DataError
from eaglecpp.options import ModelOptions, SamplingOptions
from eaglecpp.rounds import Rounds, find_rounds
from eaglecpp.train.capture.crowd import Said, Task, Wanted, crowd_options, run
from eaglecpp.train.capture.features import TargetSource
from eaglecpp.train.fit.batch import make_batch
from eaglecpp.train.fit.loss import step_weights
from eaglecpp.train.samples import Sample, TrainText
from helpers.chains import chain_logits, random_model, reference
from helpers.training import KINDS, N_VOCAB, draft_ids, make_sample

if TYPE_CHECKING:
    from conftest import Models

N_STEPS, N_LABELS = 4, 6


def rounds_of(sample: Sample, n_prompt: int, drafts: dict[int, list[int]], rng: Any) -> Rounds:
    """Rounds at these roots. A draft is accepted where it and all before it are the text's."""
    given: dict[str, list[Any]] = {name: [] for name in ("root", "n_drafts", "token", "parent", "accepted")}
    for root, tokens in drafts.items():
        right = [token == sample.tokens[root + 1 + i] for i, token in enumerate(tokens)]
        given["root"].append(root)
        given["n_drafts"].append(len(tokens))
        given["token"] += tokens
        given["parent"] += range(len(tokens))
        given["accepted"] += np.logical_and.accumulate(right).tolist()
    arrays: dict[str, NDArray[Any]] = {name: np.array(v, np.int32) for name, v in given.items()}
    n_rejected = int((arrays["accepted"] == 0).sum())
    ids = np.stack([rng.permutation(N_VOCAB)[:N_LABELS] for _ in range(n_rejected)]).astype(np.int32)
    logp = np.log(rng.dirichlet(np.ones(N_LABELS), n_rejected)).astype(np.float32)
    return Rounds.of(sample.tokens, n_prompt, arrays | {"ids": ids, "logp": logp})


@pytest.mark.parametrize("kind", ["eagle31", "three layers, eagle3"])
def test_rejected_drafts_are_learnt_as_the_chains_that_drafted_them(kind: str) -> None:
    """The loss of a batch with rounds is that without them, and that of the chains behind the rejections."""
    model, rng = random_model(KINDS[kind]), np.random.default_rng(3)
    drafter = reference(model)
    samples = [make_sample(30, 1, [0] * 6 + [1] * 24, n_aux=KINDS[kind].n_aux) for _ in range(2)]
    wrong = [int(t) for t in rng.choice(np.flatnonzero(draft_ids() >= 0), 40)]
    text = samples[1].tokens.tolist()
    drafts = {
        8: [wrong[0], wrong[1], wrong[2]],  # the first one is rejected
        12: [text[13], wrong[3], wrong[4]],  # the second
        16: [text[17], text[18], text[19], wrong[5]],  # beyond the steps
        20: [wrong[6]],  # a chain of one
        2: [wrong[7]],  # in the prompt
    }
    rounds = rounds_of(samples[1], 6, dict(sorted(drafts.items())), rng)
    device = torch.device("cpu")
    without, both = (
        model(make_batch(samples, draft_ids(), N_STEPS, device, 2, 1, given), N_STEPS)
        for given in ([], [None, rounds])
    )
    expected, weight = torch.zeros(()), 0.0
    of_step, labels = step_weights(N_STEPS, 0.8), iter(zip(rounds.ids, rounds.logp, strict=True))
    behind: dict[tuple[int, int], Any] = {}
    for root, tokens in sorted(drafts.items()):
        n_right = int(
            np.logical_and.accumulate([t == text[root + 1 + i] for i, t in enumerate(tokens)]).sum()
        )
        behind |= {(root, depth): next(labels) for depth in range(n_right + 1, len(tokens) + 1)}
    for root in (8, 12, 20):
        changed = replace(samples[1], tokens=samples[1].tokens.copy())
        changed.tokens[root + 1 : root + 1 + len(drafts[root])] = drafts[root]
        logits = chain_logits(drafter, changed, root - 1, min(N_STEPS, 1 + len(drafts[root])))
        for k, row in enumerate(logits[1:], 1):
            if (root, k) in behind or (root, k + 1) in behind:
                ids, logp = behind.get(
                    (root, k), (samples[1].label_ids[root + k], samples[1].label_logp[root + k])
                )
                mapped = draft_ids()[ids]
                p = np.where(mapped < 0, 0, np.exp(logp)).astype(np.float32)
                log_q = row.log_softmax(-1)[torch.from_numpy(np.maximum(mapped, 0))]
                expected = expected - of_step[k] * (torch.from_numpy(p) * log_q).sum()
                weight += of_step[k]
    torch.testing.assert_close(both.loss - without.loss, expected, rtol=1e-3, atol=1e-3)
    assert float(both.weight - without.weight) == pytest.approx(weight, rel=1e-4)


def test_the_engine_records_what_the_target_says_behind_rejected_drafts(models: Models) -> None:
    """The same as the target says of the text up to the draft."""
    model = crowd_options(ModelOptions(n_ctx=256, n_threads=1), 2)
    sampling = SamplingOptions(temperature=0.0, max_tokens=24, ignore_eos=True)

    def ask(text: str) -> Task[tuple[list[int], Said]]:
        said = yield Wanted(engine.prompt_tokens(text), sampling)
        return [*engine.prompt_tokens(text), *said.tokens], said

    with Engine.open(models.target, models.draft, model=model, strategy="chain:3") as engine:
        found = list(run(engine, (ask(text) for text in ("What is", "Who was that")), n_record=8))
    for tokens, said in found:
        assert said.verified is not None
        rounds = Rounds.of(tokens, len(tokens) - 24, said.verified)
        assert len(rounds.ids) and not rounds._fault()
        texts, at = [], 0
        for root, n in zip(rounds.root, rounds.n_drafts, strict=True):
            for i in range(at, at + n):
                if rounds.accepted[i]:
                    assert rounds.token[i] == tokens[root + 1 + i - at]
                else:
                    texts.append(np.array([*tokens[: root + 1], *rounds.token[at : i + 1]], np.int32))
            at += n
        assert len(texts) == len(rounds.ids)
        whole = [TrainText(text, np.ones(len(text), np.int16)) for text in texts]
        source = TargetSource(models.target, whole, n_top=8)
        for label in range(0, len(texts), 5):
            expected = source.capture(texts[label])
            np.testing.assert_array_equal(rounds.ids[label], expected.label_ids[-1])
            np.testing.assert_allclose(rounds.logp[label], expected.label_logp[-1], atol=1e-4)
        source.close()


def test_rounds_are_found_by_their_text_and_damage_is_named(tmp_path: Path) -> None:
    sample, rng = make_sample(30, 1), np.random.default_rng(1)
    rounds = rounds_of(sample, 6, {8: [1, 2], 12: [int(sample.tokens[13]), 5]}, rng)
    path = rounds.write(tmp_path)
    found = find_rounds(tmp_path, sample.tokens)
    assert found is not None and find_rounds(tmp_path, sample.tokens[:-1]) is None
    for name, value in vars(rounds).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=2e-3)
    assert path.stat().st_mode & 0o077 == 0
    for name, value in {
        "root": np.array([12, 8], np.int32), "n_drafts": np.array([2, 3], np.int32),
        "parent": np.array([1, 0, 0, 1], np.int32), "tokens": sample.tokens[:10], "n_prompt": 31,
        "accepted": np.ones(4, np.bool_), "logp": rounds.logp[:1], "token": rounds.token.astype(np.int64),
    }.items():  # fmt: skip
        replace(rounds, tokens=sample.tokens).write(tmp_path)
        broken = replace(rounds, **{name: value})
        broken.write(tmp_path).rename(path)
        with pytest.raises(DataError, match="expected the verified drafts of a text"):
            Rounds.read(path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match="delete the file"):
        find_rounds(tmp_path, sample.tokens)
