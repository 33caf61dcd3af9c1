# SPDX-License-Identifier: MIT
"""Tests quantisation-aware training, in which the model computes with the weights that its file will
contain.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglecpp.convert import DraftSpec, open_drafter, parse_type, read_gguf
from eaglecpp.train.data.vocab import DraftVocabulary
from eaglecpp.train.fit.batch import make_batch
from eaglecpp.train.fit.evaluate import TrainingTimeTest
from eaglecpp.train.fit.export import export_gguf, write_checkpoint
from eaglecpp.train.fit.loop import Duration, Hyper, Limits, Optimizer, Trainer, load_state, lr_factor
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.spec import new_spec, with_layers
from eaglecpp.train.fit.stored import StoredWeights
from eaglecpp.train.fit.weights import from_checkpoint, target_embedding
from helpers.tiny import make_target
from helpers.training import N_VOCAB, SPEC, Recorder, Samples, draft_ids, make_source

COARSE = "Q4_0"


def make_model(spec: DraftSpec = SPEC) -> DraftModel:
    """Returns a model whose rows can be divided into the blocks of the tensor type."""
    torch.manual_seed(1)
    spec = replace(spec, intermediate_size=64)
    return DraftModel(spec, torch.randn(N_VOCAB, 32), share_head=False, dtype=torch.float32)


def make_trainer(
    model: DraftModel, source: Samples, folder: Path, parts: tuple[range, range], n_steps: int, hyper: Hyper
) -> Trainer:
    """Returns a trainer that computes with the weights as stored in the file."""
    method, stored = TrainingTimeTest(model, draft_ids(), 2), StoredWeights(model, parse_type(COARSE))
    budget, limits = Duration(steps=n_steps), Limits(micro_tokens=1000)
    return Trainer(method, source, parts, folder, budget, hyper, limits, Recorder(), stored=stored)


def copies(model: DraftModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q8_0", "BF16"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_model_computes_with_the_weights_of_the_file(tmp_path: Path, kind: str, layers: int) -> None:
    target = make_target(tmp_path)
    file = read_gguf(target.gguf)
    n = target.n_vocab // 4
    ids = np.concatenate([np.arange(n), np.arange(2 * n, 3 * n)])
    spec = replace(with_layers(new_spec(file, target.n_vocab, 8, (2, 4, 5)), layers), draft_vocab_size=2 * n)
    torch.manual_seed(3)
    model = DraftModel(spec, target_embedding(file), share_head=False, dtype=torch.float32)
    exact = copies(model)
    with StoredWeights(model, parse_type(kind)).lent():
        lent = copies(model)
    write_checkpoint(
        tmp_path / "d", model, DraftVocabulary(ids.astype(np.int64), target.n_vocab), {}, own_embedding=False
    )
    report = export_gguf(tmp_path / "d", target.gguf, kind, share_head=False)
    found = from_checkpoint(open_drafter(report.out, target.gguf))
    assert found.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    for name, values in found.items():
        assert torch.equal(values, lent[name]), name
    for name, p in model.named_parameters():
        assert torch.equal(p, exact[name]), name
    changed = {name for name in exact if not torch.equal(exact[name], lent[name])}
    assert changed == {name for name, values in exact.items() if values.ndim == 2}


def test_exact_weights_are_restored_after_an_error() -> None:
    model = make_model()
    exact = copies(model)
    with pytest.raises(ZeroDivisionError), StoredWeights(model, parse_type(COARSE)).lent():
        assert not torch.equal(model.fc, exact["fc"])
        raise ZeroDivisionError
    assert all(torch.equal(p, exact[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("qat", [True, False])
def test_gradients_of_stored_weights_are_added_to_the_exact_ones(tmp_path: Path, qat: bool) -> None:
    model, source, hyper = make_model(), make_source(4), Hyper(n_steps=2, lr=0.01, batch_tokens=1000)
    stored = StoredWeights(model, parse_type(COARSE))
    batch = make_batch([source.sample(i) for i in range(4)], draft_ids(), 2, torch.device("cpu"))
    with stored.lent() if qat else contextlib.nullcontext():
        sums = model(batch)
        sums.loss.backward()
    Optimizer(model.parameters()).step(1 / sums.weight, hyper.lr * lr_factor(0.0, hyper.warmup))

    trained = make_model()
    make_trainer(trained, source, tmp_path, (range(4), range(0)), 1, hyper).run()
    same = [
        torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), trained.parameters(), strict=True)
    ]
    assert all(same) if qat else not any(same)


def test_evaluations_use_stored_weights_and_saves_exact_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, source = make_model(), make_source(4)
    stored = StoredWeights(model, parse_type(COARSE))
    seen: list[torch.Tensor] = []
    drafts = model.drafts

    def watched(*args: Any) -> Any:
        seen.append(model.fc.detach().clone())
        return drafts(*args)

    monkeypatch.setattr(model, "drafts", watched)
    hyper = Hyper(n_steps=2, lr=0.01, batch_tokens=60)
    make_trainer(model, source, tmp_path, (range(3), range(3, 4)), 2, hyper).run()
    exact = model.fc.detach().clone()
    with stored.lent():
        assert torch.equal(seen[-1], model.fc)
    assert torch.equal(load_state(tmp_path / "last.pt")["model"]["fc"], exact)
    assert torch.equal(load_state(tmp_path / "best.pt")["model"]["fc"], exact)
