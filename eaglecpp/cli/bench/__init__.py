# SPDX-License-Identifier: MIT
"""`eaglecpp bench`: the command, its pictures, and the table by category."""
