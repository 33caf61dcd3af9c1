# SPDX-License-Identifier: MIT
"""Measuring: strategies against plain decoding on a few prompts (`strategies`), and suites of prompts by
category (`suite` reads them, `suite_run` asks them, `server` asks another server).
"""

from eaglecpp.bench.strategies import PROMPTS, STRATEGIES, Measured, measure, plan_report

__all__ = ["PROMPTS", "STRATEGIES", "Measured", "measure", "plan_report"]
