# SPDX-License-Identifier: MIT
"""How a user names a model, a drafter, a checkpoint or a data set: one grammar for the command line, the
Modelfile and Python. docs/models.md is its description for users.

`reference` reads a text, `names` knows the names of stored models.
"""
