# SPDX-License-Identifier: MIT
"""Runs `eaglecpp` with scripted answers, because a small model calls tools badly: `python scripted_serve.py
serve MODEL ...`. A grammar that allows only the scripted text forces the tokens of each answer. Everything
else, such as routes, prompts, caches and streams, is the real server's.

EAGLECPP_SCRIPT has the script as JSON: `calls` has the arguments of a call for each tool's name, `mark` is a
text that each task contains, `secret` is a text that each result of a call contains, and `log` is a file to
which one JSON line per answer is written.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from eaglecpp.chat.message import Role
from eaglecpp.cli import main
from eaglecpp.server import answer as of_server

SCRIPT = json.loads(os.environ["EAGLECPP_SCRIPT"])


def progress(request: of_server.ServedRequest) -> tuple[list[str], int, int]:
    """Returns the names of the tools that the script knows, the number of tasks in a conversation, and the
    number of results.
    """
    names = {tool.get("function", tool)["name"] for tool in request.tools}
    messages: Any = request.messages or ()
    n_tasks = sum(one.content.count(SCRIPT["mark"]) for one in messages if one.role == Role.USER)
    n_results = sum(SCRIPT["secret"] in one.content for one in messages if one.role == Role.TOOL)
    return [name for name in SCRIPT["calls"] if name in names], n_tasks, n_results


def answered(request: of_server.ServedRequest) -> str:
    """Returns the scripted answer to a request: a tool call if the last task has no result yet, otherwise a
    text.
    """
    tools, n_tasks, n_results = progress(request)
    if tools and n_results < n_tasks:
        call = {"name": tools[0], "arguments": SCRIPT["calls"][tools[0]]}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return f"Done with task {n_tasks}."


def resolve(model: Any, request: of_server.ServedRequest) -> Any:
    """Replaces `eaglecpp.server.answer.resolve`, and adds a grammar for the scripted answer to the
    request.
    """
    # With a JSON schema, the model itself answers, for example a request for a title.
    if request.json_schema is None:
        grammar = f"root ::= {json.dumps(answered(request))}"
        request = replace(request, grammar=grammar, may_call=False)
    return RESOLVE(model, request)


def count(answer: of_server.Answer, request: Any) -> None:
    """Counts an answer, and writes a line to the log."""
    COUNT(answer, request)
    tools, n_tasks, n_results = progress(answer.request)
    line = {
        "path": request.url.path,
        "is_agent": bool(tools),
        "n_tools": len(answer.request.tools),
        "n_tasks": n_tasks,
        "n_results": n_results,
        "n_prompt": len(answer.prompt.tokens),
        "n_reused": answer.timings["cache_n"],
        "reason": answer.reason,
    }
    with Path(SCRIPT["log"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


RESOLVE, of_server.resolve = of_server.resolve, resolve
COUNT, of_server._count = of_server._count, count

if __name__ == "__main__":
    main()
