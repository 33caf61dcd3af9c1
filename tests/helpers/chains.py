# SPDX-License-Identifier: MIT
"""Models of the trainer with random weights, and chains that the PyTorch reference drafts with the same
weights.
"""

from __future__ import annotations

import torch

from eaglecpp.convert import DraftSpec
from eaglecpp.train.fit.export import hf_config
from eaglecpp.train.fit.model import DraftModel
from eaglecpp.train.fit.weights import to_checkpoint
from eaglecpp.train.samples import Sample
from helpers.reference.drafter import Drafter
from helpers.training import N_VOCAB


def random_model(spec: DraftSpec, dtype: torch.dtype = torch.float32) -> DraftModel:
    """Returns a model whose random weights are so large that every operation changes the logits."""
    torch.manual_seed(5)
    model = DraftModel(spec, torch.randn(N_VOCAB, spec.hidden_size), share_head=False, dtype=dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(
                torch.randn_like(p) * p.shape[-1] ** -0.5 * 1.5
                if p.ndim > 1
                else p + 0.3 * torch.randn_like(p)
            )
    return model


def reference(model: DraftModel) -> Drafter:
    """Returns a drafter of tests/helpers/reference with the weights of this model."""
    spec = model.spec
    tensors = to_checkpoint(dict(model.state_dict()), spec)
    weights = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
    config = {
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_size": spec.hidden_size,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope.theta,
        "norm_output": spec.norm_output,
        "norm_before_residual": spec.norm_before_residual,
    }
    shape = hf_config(spec, {})
    config |= {name: shape[name] for name in shape if "rank" in name or "_dim" in name or "rope_sc" in name}
    return Drafter(config, weights, model.embedding, model.head.detach())


def chain_logits(drafter: Drafter, sample: Sample, anchor: int, n_steps: int) -> list[torch.Tensor]:
    """Commits all rows before `anchor` with true features, and returns the logits of a chain that starts at
    `anchor`.
    """
    tokens = sample.tokens.tolist()
    drafter.reset()
    features = torch.from_numpy(sample.features[:, : anchor + 1])
    logits, state = drafter.commit(features, tokens[1 : anchor + 2])
    found = [logits]
    for k in range(1, n_steps):
        rows, states = drafter.extend(state[None], [tokens[anchor + 1 + k]], [k - 2], depth=k)
        found.append(rows[0])
        state = states[0]
    return found
