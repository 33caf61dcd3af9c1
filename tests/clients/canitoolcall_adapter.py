# SPDX-License-Identifier: MIT
"""canitoolcall's fixtures, which are recorded and rendered answers of models, read as the server reads
answers.

The adapter knows no tokenizer, so characters stand for tokens; control tokens are text, as `AnswerReader`
makes those that it knows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from canitoolcall.adapters.base import Adapter, ReplayInput, Support, ToolSpec
from canitoolcall.results import ParsedToolCall, ParseResult

from eaglecpp.chat.thinking import HARMONY, splitter, tags_of
from eaglecpp.chat.tool_calls import ToolCall, ToolReader, call_marks

# what the templates of these families say of calls and thinking
TEMPLATES = {
    "qwen3-hermes": "<tool_call> <think>",
    "qwen3-xml": "<tool_call> <function= <think>",
    "glm": "<tool_call> <think>",
    "mistral": "[TOOL_CALLS] [THINK]",
    "llama": "<|python_tag|>",
    "deepseek": "<｜tool▁calls▁begin｜> <think>",
    "gemma4": "<|tool_call> <|channel>thought <channel|>",
    "gpt-oss": "<|start|>assistant to= <|channel|>analysis<|message|>",
    "kimi": "<|tool_calls_section_begin|> <|tool_call_begin|> <think>",
}


DSML = {"V3.2": "function_calls", "V4.1": " calls", "V4": "tool_calls"}
"""What the later templates of DeepSeek call a block, by a part of the model's name."""


def template_of(raw: ReplayInput) -> str:
    word = next((word for part, word in DSML.items() if part in raw.model), None)
    return f"<｜DSML｜{word}> <think>" if word and raw.family == "deepseek" else TEMPLATES[raw.family]


class EagleAdapter(Adapter):
    """`package.module:Class` of `canitoolcall run --engine`."""

    name = "eaglecpp"
    pinned_version = version("eaglecpp")

    def version(self) -> str:
        return self.pinned_version

    def supports(self, family: str, model: str) -> Support:
        return Support(
            family in TEMPLATES, None if family in TEMPLATES else "its templates' form is not read"
        )

    def parser_config(self, raw: ReplayInput) -> dict[str, Any]:
        return {"template": template_of(raw)}

    def units(self, raw: ReplayInput) -> list[int]:
        return [ord(character) for character in raw.text]

    def parse(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ParseResult:
        return self.parse_stream(raw, [self.units(raw)], tools)

    def parse_stream(
        self, raw: ReplayInput, chunks: Sequence[Sequence[int]], tools: Sequence[ToolSpec]
    ) -> ParseResult:
        template = template_of(raw)
        tags = tags_of(template)
        is_open = tags is not None and tags.is_open(raw.generation_prompt or "")
        parts_of = splitter(tags, "thought" if is_open else "any", bool(tools))
        functions = [tool.get("function", tool) for tool in tools]
        schemas = {str(one["name"]): one.get("parameters") or {} for one in functions}
        is_bare = tags is not HARMONY
        reader = ToolReader(call_marks(template), tools=schemas, may_be_bare=is_bare) if tools else None
        content, thinking, calls = "", "", list[ToolCall]()
        for last, chunk in [*((False, chunk) for chunk in chunks), (True, [])]:
            parts = parts_of.finish() if last else parts_of.feed("".join(map(chr, chunk)))
            thinking += "".join(part.text for part in parts if part.kind == "thinking")
            said = "".join(part.text for part in parts if part.kind == "answer")
            found: list[str | ToolCall] = [said]
            if reader is not None:
                found = reader.feed(said) + (reader.finish() if last else [])
            content += "".join(one for one in found if isinstance(one, str))
            calls += [one for one in found if isinstance(one, ToolCall)]
        told = tuple(ParsedToolCall(one.name, json.dumps(dict(one.arguments))) for one in calls)
        return ParseResult(content or None, thinking or None, told)
