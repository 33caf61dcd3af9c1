# SPDX-License-Identifier: MIT
"""Opens a model: turns the user's reference into everything that the engine needs.

`find` searches this machine, `fetch` may also download; both return a `ModelFiles`. `plan` adds options and
strategy with the origin of each setting, and returns an `OpeningPlan`, which `Engine` opens and `show` and
`--verbose` print. `context` chooses the context length.
"""
