# SPDX-License-Identifier: MIT
"""`eaglecpp bench`: the command and its pictures."""
