# SPDX-License-Identifier: MIT
"""A body for every endpoint of the server that reads one, with as many of its fields as fit together."""

from __future__ import annotations

from typing import Any

from helpers.http_server import MODEL

SHORT = {"temperature": 0, "num_predict": 1}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
OURS = {"draft": True, "strategy": "auto", "exact": "off", "keep_alive": -1}
OLLAMA = {"model": MODEL, "stream": False, "options": {**SHORT, "seed": 1, "stop": ["x"], "num_ctx": 64},
          "format": {"enum": [1]}, "think": None, "logprobs": True, "top_logprobs": 1, **OURS,
          "show_drafts": False}  # fmt: skip
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1]}}}
OPENAI = {"model": MODEL, "stream": False, "max_tokens": 1, "temperature": 0, "top_p": 1, "seed": 1, "n": 1,
          "stop": ["x"], "logit_bias": {"1": 1}, "options": {"top_k": 1, "temperature": 0}, "grammar": None,
          "response_format": SCHEMA, **OURS}  # fmt: skip
TURNS = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a", "tool_calls": [CALL]},
    {"role": "tool", "content": "r", "tool_call_id": "c1", "tool_name": "f"},
    {"role": "user", "content": [{"type": "text", "text": "q"}]},
]
CLAUDE_TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "q"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": "b"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [
        {"type": "text", "text": "r"}]}]},
]  # fmt: skip
ITEMS = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "content": None},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
    {"type": "function_call", "call_id": "c1", "namespace": "n", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r"}]},
]
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/api/chat", {**OLLAMA, "messages": TURNS, "tools": [TOOL]}),
    ("POST", "/api/generate", {**OLLAMA, "prompt": "p", "system": "s", "template": "{{ .Prompt }}",
                               "raw": False, "suffix": "", "images": [], "context": []}),
    ("POST", "/api/show", {"model": MODEL, "verbose": False}),
    ("DELETE", "/api/delete", {"model": "nobody"}),
    ("POST", "/api/pull", {"model": "hf.co/a/b:latest:c", "draft": "none", "insecure": False,
                           "stream": False}),
    ("POST", "/api/create", {"model": "made", "from": "nobody", "system": "s", "template": "{{ .Prompt }}",
                             "license": ["l"], "parameters": {"stop": ["x"], "temperature": 1},
                             "messages": [{"role": "user", "content": "q"}], "stream": False}),
    ("POST", "/api/copy", {"source": "nobody", "destination": "copied"}),
    ("POST", "/api/embed", {"model": MODEL, "input": ["x"], "truncate": True, "dimensions": 8,
                            "options": {"num_ctx": 64}, "keep_alive": "5m"}),
    ("POST", "/api/embeddings", {"model": MODEL, "prompt": "x", "options": {"num_ctx": 64}}),
    ("POST", "/v1/embeddings", {"model": MODEL, "input": "x", "encoding_format": "base64", "dimensions": 8,
                                "truncate": False}),
    ("POST", "/v1/chat/completions", {**OPENAI, "messages": TURNS, "tools": [TOOL], "tool_choice": "auto",
                                      "logprobs": True, "top_logprobs": 1, "reasoning_effort": "low",
                                      "chat_template_kwargs": {"enable_thinking": False},
                                      "stream_options": {"include_usage": True}}),
    ("POST", "/v1/completions", {**OPENAI, "prompt": ["p", [1]], "echo": False, "logprobs": 1, "suffix": "",
                                 "best_of": 1}),
    ("POST", "/v1/responses", {**OPENAI, "input": ITEMS, "instructions": "i", "max_output_tokens": 1,
                               "tools": [{"type": "namespace", "name": "n", "tools": [TOOL["function"]]}],
                               "metadata": {"a": "b"}, "truncation": "auto",
                               "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}}),
    ("POST", "/v1/messages", {"model": MODEL, "max_tokens": 1, "system": "s", "messages": CLAUDE_TURNS,
                              "tools": [{"name": "f", "description": "d", "input_schema": {}}],
                              "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"},
                              "stop_sequences": ["x"], "temperature": 0, "stream": False,
                              "output_config": {"format": None}}),
    ("POST", "/v1/messages/count_tokens", {"model": MODEL, "messages": CLAUDE_TURNS}),
]  # fmt: skip

USUAL: dict[str, Any] = {
    "model": MODEL, "prompt": "x", "input": "x", "input_prefix": "", "input_suffix": "", "content": "x",
    "max_tokens": 1, "n_predict": 1, "stream": False, "messages": [{"role": "user", "content": "x"}],
}  # fmt: skip
"""Enough for any endpoint."""
