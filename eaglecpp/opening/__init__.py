# SPDX-License-Identifier: MIT
"""The one way to open a model: from what a user names to everything that opening it needs.

`find` looks on this machine, `fetch` may download as well; both return a `ModelFiles`. `plan` adds options,
strategy and where each of them came from, and returns an `OpeningPlan`, which `Engine` opens and
`show` and `--verbose` print. `context` chooses a length for the context.
"""
