# SPDX-License-Identifier: MIT
"""Turns files of texts and conversations into token lists; chooses the draft vocabulary. Needs only numpy."""
