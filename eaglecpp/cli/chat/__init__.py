# SPDX-License-Identifier: MIT
"""The conversation of `eaglecpp run`, from the line that is typed to the answer on the screen."""
