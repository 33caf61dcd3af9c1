# SPDX-License-Identifier: MIT
"""Conversations on disk, and conversations together with their model."""
