# SPDX-License-Identifier: MIT
"""Measuring: strategies against plain decoding on a few prompts (`strategies`); `verdict` says in plain words
what drafting and the kernels give.
"""

from eaglecpp.bench.strategies import PROMPTS, STRATEGIES, Measured, measure, plan_report
from eaglecpp.bench.verdict import Verdict, known_verdict, measure_verdict, verdict_of

__all__ = [
    "PROMPTS",
    "STRATEGIES",
    "Measured",
    "Verdict",
    "known_verdict",
    "measure",
    "measure_verdict",
    "plan_report",
    "verdict_of",
]
