# SPDX-License-Identifier: MIT
"""Runs the page's code in Node. Tests branches, which keep the earlier versions of messages that are edited
or answered again. Also tests that the page's libraries equal npm's. tests/clients/use_serve_page.py tests the
page in a browser.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import eaglecpp.server

STATIC = Path(eaglecpp.server.__file__).parent / "static"
BRANCHES = STATIC / "branches.js"
NODE = shutil.which("node")


def test_libraries_match_the_manifest() -> None:
    """Tests that the page's libraries match the manifest. docs/vendor_page.py writes the libraries and the
    manifest.
    """
    folder = STATIC / "vendor"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    wanted = {name: sha for one in manifest.values() for name, sha in one["files"].items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert found.pop("manifest.json")
    assert found == wanted
    page = "".join(path.read_text(encoding="utf-8") for path in STATIC.glob("*.*"))
    icons = (folder / "icons.svg").read_text(encoding="utf-8")
    named = re.findall(r'(?:icon|Icon} name)="([\w-]+)"|step\("([\w-]+)"', page)
    assert named and all(f'id="{one or other}"' in icons for one, other in named), named
    assert all(f'"{one}"' in page for one in re.findall(r'id="([\w-]+)"', icons)), "expected no unused icon"
    for name in wanted:
        assert name.startswith("LICENSE-") or f"vendor/{name}" in page, name


def run(script: str) -> Any:
    """Runs a script of steps on a conversation, and returns the views that the script recorded. After each
    step, the conversation is saved and read again, as in the browser's storage.
    """
    head = f"""
        import {{ addTurn, isTree, shown, showTurn, versions }} from {json.dumps(BRANCHES.as_uri())};
        let chat = {{ turns: [] }};
        const views = [];
        const say = (index, ...texts) => {{
            for (const text of texts) addTurn(chat, index++, {{ content: text }});
            chat = JSON.parse(JSON.stringify(chat));
        }};
        const turn = (index, step) => {{
            const turn = shown(chat)[index], all = versions(chat, turn);
            showTurn(chat, all[all.indexOf(turn) + step]);
            chat = JSON.parse(JSON.stringify(chat));
        }};
        const tell = () => views.push(isTree(chat) && shown(chat).map((one) => {{
            const all = versions(chat, one);
            const at = all.indexOf(one) + 1;
            return all.length > 1 ? `${{one.content}} ${{at}}/${{all.length}}` : one.content;
        }}).join(" "));
    """
    assert NODE is not None
    command = [NODE, "--input-type=module", "-e", f"{head}{script}; console.log(JSON.stringify(views));"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.skipif(NODE is None, reason="needs Node")
@pytest.mark.parametrize(
    ("script", "reply"),
    [
        ('say(0, "q", "a", "r", "b"); tell()', ["q a r b"]),
        # An edited question keeps its old conversation as a branch.
        ('say(0, "q", "a", "r", "b"); say(0, "Q", "A"); tell(); turn(0, -1); tell(); turn(0, 1); tell()',
         ["Q 2/2 A", "q 1/2 a r b", "Q 2/2 A"]),
        # Branches are in the order in which they were created.
        ('say(0, "one", "1"); say(0, "two", "2"); turn(0, -1); say(0, "three", "3"); tell(); turn(0, -1);'
         "tell(); turn(0, -1); tell(); turn(0, 1); turn(0, 1); tell()",
         ["three 3/3 3", "two 2/3 2", "one 1/3 1", "three 3/3 3"]),
        # A branch may have branches of its own.
        ('say(0, "q", "a", "r", "b"); say(1, "A"); tell(); say(2, "s", "c"); say(2, "t"); tell();'
         'turn(1, -1); tell(); say(0, "Q"); turn(0, -1); turn(1, 1); tell(); turn(2, -1); tell()',
         ["q A 2/2", "q A 2/2 t 2/2", "q a 1/2 r b", "q 1/2 A 2/2 t 2/2", "q 1/2 A 2/2 s 1/2 c"]),
    ],
    ids=["turns", "an edit", "order", "branches of branches"],
)  # fmt: skip
def test_branches(script: str, reply: list[str]) -> None:
    assert run(script) == reply
