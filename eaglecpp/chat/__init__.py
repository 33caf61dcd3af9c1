# SPDX-License-Identifier: MIT
"""Conversations: messages, the templates that turn them into prompts, and the interactive chat."""
