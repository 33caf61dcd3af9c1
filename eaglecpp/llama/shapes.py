# SPDX-License-Identifier: MIT
"""Result dictionaries in the shape of `llama_cpp.Llama`, for `eaglecpp.llama`.

Plain functions from results to dicts; key names and quirks follow abetlen/llama-cpp-python:
llama_cpp/llama.py (0.3.36). Ours is one key more: `timings`, in a completion and in the last chunk of a
stream.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from eaglecpp.results import FinishReason


@dataclass(frozen=True)
class Reply:
    """What all dictionaries of one completion share: id, time, model name."""

    model: str
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(
        self,
        text: str,
        logprobs: dict[str, Any] | None,
        finish_reason: FinishReason,
        n_prompt: int,
        n_completion: int,
        timings: dict[str, Any],
    ) -> dict[str, Any]:
        """The result of a completion that was not streamed."""
        return {
            **self.chunk(text, logprobs, finish_reason),
            "usage": {
                "prompt_tokens": n_prompt,
                "completion_tokens": n_completion,
                "total_tokens": n_prompt + n_completion,
            },
            "timings": timings,
        }

    def chunk(
        self, text: str, logprobs: dict[str, Any] | None = None, finish_reason: FinishReason | None = None
    ) -> dict[str, Any]:
        """One dictionary of a stream."""
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }
