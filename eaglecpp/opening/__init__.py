# SPDX-License-Identifier: MIT
"""Finds a model: turns the user's reference into the files and options that the engine needs.

`find` searches this machine, and `fetch` may also download. Both return a `ModelFiles`. `plan` adds options
and strategy with the origin of each setting, and returns an `OpeningPlan`. `Engine` opens the plan, and
`show` and `--verbose` print it. `context` chooses the context length.
"""
