# SPDX-License-Identifier: MIT
"""Drafters that keep learning from their user's conversations.

`records` stores conversations and trained drafters, `training` trains a drafter, and `idle` does so while a
server is idle. The engine only knows a hook, which is called with each answer.
"""
