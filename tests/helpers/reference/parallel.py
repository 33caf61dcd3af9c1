# SPDX-License-Identifier: MIT
"""P-EAGLE in PyTorch: one pass over all rows. The last rows have mask tokens, because their tokens are
unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .drafter import Drafter
from .layers import sees


class ParallelDrafter(Drafter):
    """A `Drafter` whose last rows pair the mask feature with the mask token."""

    def mask_positions(self, first: int, n: int) -> torch.Tensor:
        return torch.arange(first, first + n)

    def ahead(self, features: torch.Tensor, tokens: Sequence[int], n_ahead: int) -> torch.Tensor:
        """Returns the draft logits of the `n_ahead + 1` tokens that follow a text."""
        self.reset()
        n_aux, n_known, _ = features.shape
        masked = self.w["mask_hidden"].reshape(n_aux, 1, -1).expand(-1, n_ahead, -1)
        rows = torch.cat([features, masked], dim=1)
        positions = torch.cat([torch.arange(n_known), self.mask_positions(n_known, n_ahead)])
        all_tokens = [*tokens, *[int(self.config["ptd_token_id"])] * n_ahead]
        logits, _ = self.rows(self.fuse(rows), all_tokens, positions, sees(len(all_tokens), 0))
        return logits[n_known - 1 :]

    def drafts(self, features: torch.Tensor, tokens: Sequence[int], n: int) -> list[int]:
        """Returns the most likely draft at each position after a text, as target ids."""
        best: list[int] = self.target_ids[self.ahead(features, tokens, n - 1).argmax(-1)].tolist()
        return best
