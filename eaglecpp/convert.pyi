# SPDX-License-Identifier: MIT
# This file is only for type checkers: `convert/` is installed as `eaglecpp.convert`.
from convert import *  # noqa: F403
