# SPDX-License-Identifier: MIT
"""The weekly look for published faults of llama.cpp that SECURITY.md does not know."""

from __future__ import annotations

import re
from typing import Any

import advisories
import pytest

TEXT = advisories.KNOWN.read_text(encoding="utf-8")


def test_what_is_listed_is_known_by_either_name() -> None:
    answer = [
        {"ghsa_id": "GHSA-j8rj-fmpv-wcxw", "cve_id": None, "summary": "RPC"},
        {"ghsa_id": "GHSA-xxxx-xxxx-xxxx", "cve_id": "CVE-2026-34159", "summary": "RPC"},
        {"ghsa_id": "GHSA-aaaa-aaaa-aaaa", "cve_id": None, "summary": "a new one"},
    ]
    assert advisories.unknown(advisories.from_github(answer), TEXT) == ["GHSA-aaaa-aaaa-aaaa: a new one"]


def test_a_new_cve_is_told_with_what_it_is() -> None:
    cves = [
        {"id": name, "descriptions": [{"lang": "es", "value": "-"}, {"lang": "en", "value": f"of {name}"}]}
        for name in ("CVE-2026-118375", "CVE-2099-1")
    ]
    answer: dict[str, Any] = {"totalResults": 2, "vulnerabilities": [{"cve": cve} for cve in cves]}
    assert advisories.unknown(advisories.from_nvd(answer), TEXT) == ["CVE-2099-1: of CVE-2099-1"]
    with pytest.raises(ValueError, match="2 of 3"):
        advisories.from_nvd(answer | {"totalResults": 3})


def test_names_in_the_list_are_whole() -> None:
    """A name cut short would stand for others."""
    names = re.findall(r"\b(?:CVE|GHSA)-[\w-]+", TEXT)
    assert len(names) > 30
    for name in names:
        assert re.fullmatch(r"CVE-20\d\d-\d{4,6}|GHSA(?:-[0-9a-z]{4}){3}", name), name
