# SPDX-License-Identifier: MIT
"""Turns files of texts and conversations into token lists, and chooses the draft vocabulary. This package
needs only numpy.
"""
