# SPDX-License-Identifier: MIT
"""Drafters that keep learning from their user's conversations.

`records` stores conversations and trained drafters, `training` trains a drafter, and `idle` runs such a
training while a server is idle. The engine only calls a hook with each answer.
"""
