# SPDX-License-Identifier: MIT
# For type checkers only: `convert/` is installed as `eaglecpp.convert`.
from convert import *  # noqa: F403
