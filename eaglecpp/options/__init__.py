# SPDX-License-Identifier: MIT
"""Options of the engine: their declarations (`declared`), checks (`checked`), and generated types for keyword
arguments (`typed`). `Strategy` is a drafting strategy.
"""

from __future__ import annotations

from eaglecpp.options.checked import LARGEST_INT as LARGEST_INT
from eaglecpp.options.checked import Option as Option
from eaglecpp.options.checked import declare as declare
from eaglecpp.options.checked import describe as describe
from eaglecpp.options.declared import GROUPS as GROUPS
from eaglecpp.options.declared import HEAD as HEAD
from eaglecpp.options.declared import MAX_SEQUENCES as MAX_SEQUENCES
from eaglecpp.options.declared import TEXT as TEXT
from eaglecpp.options.declared import DraftOptions as DraftOptions
from eaglecpp.options.declared import ModelOptions as ModelOptions
from eaglecpp.options.declared import SamplingOptions as SamplingOptions
from eaglecpp.options.declared import split as split
from eaglecpp.options.strategy import Strategy as Strategy
