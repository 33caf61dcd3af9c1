# SPDX-License-Identifier: MIT
"""The chat of `eaglecpp run`, from keyboard input to the answer on the screen."""
