# SPDX-License-Identifier: MIT
"""Says which published faults of llama.cpp and llama-cpp-python SECURITY.md does not know.

    python tests/advisories.py

Asks GitHub for the advisories of both repositories and the NVD for what names them. Exit status 1, with a
line for each unknown one: find out from the pinned sources whether it reaches us, and add it to SECURITY.md
with the reason. tests/newest.py runs this every week.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

KNOWN = Path(__file__).resolve().parents[1] / "SECURITY.md"
GITHUB = "https://api.github.com/repos/{}/security-advisories?per_page=100"
NVD = "https://services.nvd.nist.gov/rest/json/cves/2.0?resultsPerPage=2000&keywordSearch={}"
REPOSITORIES = ("ggml-org/llama.cpp", "abetlen/llama-cpp-python")
_TIMEOUT_S = 60

Fault = tuple[tuple[str, ...], str]
"""Its names, and what it is."""


def from_github(answer: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """The advisories of a repository."""
    return [
        (tuple(filter(None, (one["ghsa_id"], one.get("cve_id")))), str(one.get("summary"))) for one in answer
    ]


def from_nvd(answer: Mapping[str, Any]) -> list[Fault]:
    """The NVD's answer to a search. Raises ValueError for one that is only the first page."""
    found = [one["cve"] for one in answer["vulnerabilities"]]
    if len(found) < answer["totalResults"]:
        raise ValueError(f"{len(found)} of {answer['totalResults']} results")
    texts = ([text["value"] for text in cve["descriptions"] if text["lang"] == "en"] for cve in found)
    return [((cve["id"],), " ".join(text)) for cve, text in zip(found, texts, strict=True)]


def unknown(faults: Iterable[Fault], known: str) -> list[str]:
    """A line for each fault none of whose names is in the text."""
    return sorted(
        {f"{' '.join(names)}: {what[:200]}" for names, what in faults if not any(n in known for n in names)}
    )


def _ask(url: str) -> Any:
    request = urllib.request.Request(url, headers={"User-Agent": "eaglecpp"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.load(answer)


def main() -> None:
    faults: list[Fault] = []
    for repository in REPOSITORIES:
        faults += from_github(_ask(GITHUB.format(repository)))
        faults += from_nvd(_ask(NVD.format(repository.partition("/")[2])))
    lines = unknown(faults, KNOWN.read_text(encoding="utf-8"))
    print(*lines, f"{len(faults)} published, {len(lines)} unknown to {KNOWN.name}", sep="\n")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
