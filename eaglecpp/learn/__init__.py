# SPDX-License-Identifier: MIT
"""Drafters that go on learning from their user's conversations: `records` are what is kept and the drafters
that learnt, `training` makes such a drafter, `idle` does so while a server has nothing else to do. The engine
knows one hook, which is called with each answer.
"""
