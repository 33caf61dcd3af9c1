# SPDX-License-Identifier: MIT
"""Measuring: strategies against plain decoding on a few prompts (`strategies`); `verdict` says in plain words
what drafting and the kernels give.
"""

from eaglecpp.bench.strategies import QUESTIONS, STRATEGIES, TEMPERATURES, Measured, measure, plan_report
from eaglecpp.bench.verdict import Verdict, keep, measure_verdict, planned_verdict, verdict_of

__all__ = [
    "QUESTIONS",
    "STRATEGIES",
    "TEMPERATURES",
    "Measured",
    "Verdict",
    "keep",
    "measure",
    "measure_verdict",
    "plan_report",
    "planned_verdict",
    "verdict_of",
]
