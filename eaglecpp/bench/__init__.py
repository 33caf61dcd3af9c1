# SPDX-License-Identifier: MIT
"""Measuring: strategies against plain decoding on a few prompts (`strategies`), and suites of prompts by
category (`suite` reads them, `suite_run` asks them, `server` asks somebody else).
"""

from eaglecpp.bench.strategies import PROMPTS, STRATEGIES, Measured, measure, plan_report

__all__ = ["PROMPTS", "STRATEGIES", "Measured", "measure", "plan_report"]
