# SPDX-License-Identifier: MIT
"""P-EAGLE in PyTorch: one pass over all rows. The last rows have mask tokens, because their tokens are
unknown.

The parity tests introduce mistakes by overriding methods.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .drafter import Drafter


class ParallelDrafter(Drafter):
    """A `Drafter` whose last rows pair the mask feature with the mask token."""

    def mask_feature(self, n_aux: int) -> torch.Tensor:
        """Returns the mask feature, `[n_aux, 1, target_hidden]`."""
        return self.w["mask_hidden"].reshape(n_aux, 1, -1)

    def mask_token(self) -> int:
        return int(self.config["ptd_token_id"])

    def mask_positions(self, first: int, n: int) -> torch.Tensor:
        return torch.arange(first, first + n)

    def visible(self, n_known: int, n_ahead: int) -> torch.Tensor:
        n_rows = n_known + n_ahead
        return torch.ones(n_rows, n_rows, dtype=torch.bool).tril()

    def ahead(self, features: torch.Tensor, tokens: Sequence[int], n_ahead: int) -> torch.Tensor:
        """Returns the draft logits of the `n_ahead + 1` tokens that follow a text."""
        self.reset()
        n_aux, n_known, _ = features.shape
        rows = torch.cat([features, self.mask_feature(n_aux).expand(-1, n_ahead, -1)], dim=1)
        positions = torch.cat([torch.arange(n_known), self.mask_positions(n_known, n_ahead)])
        all_tokens = [*tokens, *[self.mask_token()] * n_ahead]
        logits, _ = self.rows(self.fuse(rows), all_tokens, positions, self.visible(n_known, n_ahead))
        return logits[n_known - 1 :]

    def drafts(self, features: torch.Tensor, tokens: Sequence[int], n: int) -> list[int]:
        """Returns the most likely draft at each position after a text, as target ids."""
        best: list[int] = self.target_ids[self.ahead(features, tokens, n - 1).argmax(-1)].tolist()
        return best
