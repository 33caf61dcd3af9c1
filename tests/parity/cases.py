# SPDX-License-Identifier: MIT
"""Shapes of the drafters in the parity tests: each switch alone, and EAGLE 3.1 with other switches."""

from __future__ import annotations

from dataclasses import replace

from helpers.random_drafter import LLAMA3, DraftShape, LatentShape

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}

# The RoPE scaling of Kimi's drafters, which is yarn. The ranges of its two betas overlap in one value.
KIMI_YARN = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
UNEVEN_YARN = KIMI_YARN | {"type": "deepseek_yarn", "beta_fast": 32, "mscale": 0.7, "mscale_all_dim": 0.4}

EAGLE3 = DraftShape()
EAGLE1 = DraftShape(eagle1=True, layers=(9,), own_head=False, n_draft_vocab=367)
MISTRAL = replace(EAGLE1, eagle1_norms=True)
GEMMA = DraftShape(layers=(2, 3, 4, 6, 7), gemma="keys", n_draft_vocab=367, head_dim=32)
DEEPSPEC = DraftShape(layers=(1, 2, 4, 5, 7), qk_norm=True, n_draft_vocab=367)
EAGLE31 = DraftShape(fc_norm=True, norm_output=True)
LATENT31 = DraftShape(latent=LatentShape(), rope=KIMI_YARN, fc_norm=True, norm_output=True, n_draft_vocab=367)

CASES = {
    "eagle3": EAGLE3,
    # With these small features and embeddings, eps decides the output of the norms.
    "small-features": DraftShape(scale=1e-3),
    "gemma-small-embeddings": replace(GEMMA, embedding=1e-3),
    "eagle31": EAGLE31,
    "eagle31-norm-before-fc": DraftShape(norm_before_fc=True, norm_output=True),
    "fc-norm-pre-norm-feed": DraftShape(fc_norm=True),
    "norm-before-fc": DraftShape(norm_before_fc=True),
    "norm-before-residual": DraftShape(norm_before_residual=True),
    "four-features": DraftShape(layers=(1, 2, 4, 6)),
    "four-features-31": DraftShape(layers=(1, 2, 4, 6), fc_norm=True, norm_output=True),
    "one-feature": DraftShape(layers=(5,)),
    "two-layers": DraftShape(n_layers=2),
    "two-layers-31": DraftShape(n_layers=2, fc_norm=True, norm_output=True),
    "qk-norm": DraftShape(qk_norm=True),
    "attention-bias": DraftShape(attention_bias=True),
    "fc-bias": DraftShape(fc_bias=True),
    "wider-than-target": DraftShape(n_embd=96, n_embd_target=64),
    "wide-heads": DraftShape(head_dim=32),
    "one-kv-head": DraftShape(n_kv_heads=1),
    "rope-linear": DraftShape(rope={"rope_type": "linear", "factor": 4.0}),
    "rope-llama3": DraftShape(rope=LLAMA3),
    "rope-yarn": DraftShape(rope=YARN),
    "sliding-window": DraftShape(window=13),
    "sliding-window-two-layers": DraftShape(window=13, n_layers=2),
    # A commit without output stops early in the last layer. So each of the two kinds of layers must be tested
    # as the last layer.
    "full-then-sliding": DraftShape(window=13, n_layers=2, full_layers=(0,)),
    "sliding-then-full": DraftShape(window=13, n_layers=2, full_layers=(1,)),
    "mixed-three-layers-31": DraftShape(
        window=13, n_layers=3, full_layers=(1,), fc_norm=True, norm_output=True
    ),
    "latent": DraftShape(latent=LatentShape()),
    "latent-31-yarn": LATENT31,
    "latent-uneven-yarn": DraftShape(latent=LatentShape(), rope=UNEVEN_YARN),
    "latent-plain-queries": DraftShape(latent=LatentShape(q_rank=0)),
    "latent-wide-values": DraftShape(latent=LatentShape(value=48, rope=2)),
    "latent-two-layers-31": DraftShape(latent=LatentShape(), n_layers=2, fc_norm=True, norm_output=True),
    "latent-window": DraftShape(latent=LatentShape(), rope=YARN, window=13),
    "latent-norm-before-residual": DraftShape(latent=LatentShape(), norm_before_residual=True),
    "whole-vocabulary": DraftShape(n_draft_vocab=367),
    "eagle1": EAGLE1,
    "eagle1-biases": replace(EAGLE1, fc_bias=True, attention_bias=True),
    "eagle1-own-head": replace(EAGLE1, own_head=True, own_embedding=False),
    "eagle1-two-layers": replace(EAGLE1, n_layers=2, n_kv_heads=4),
    "mistral": MISTRAL,
    "mistral-two-layers": replace(MISTRAL, n_layers=2),
    "deepspec": DEEPSPEC,
    "gemma-keys": GEMMA,
    "gemma-values": replace(GEMMA, gemma="values"),
    "tables-of-the-target": DraftShape(own_embedding=False, own_head=False, n_draft_vocab=367),
}
