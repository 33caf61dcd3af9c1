# SPDX-License-Identifier: MIT
"""Conversations: saved on disk, and together with their model."""
