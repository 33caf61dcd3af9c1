# SPDX-License-Identifier: MIT
"""Tests instructor, which patches `create_chat_completion_openai_v1`."""

from __future__ import annotations

import instructor
from common import done, open_model
from pydantic import BaseModel, Field


class Answer(BaseModel):
    yes: bool
    n: int = Field(ge=0, le=9)


llm = open_model()
create = instructor.patch(create=llm.create_chat_completion_openai_v1, mode=instructor.Mode.JSON_SCHEMA)
found = create(
    messages=[{"role": "user", "content": "Is 7 odd?"}], response_model=Answer, max_tokens=60, temperature=0.0
)
assert isinstance(found, Answer)
done(f"Mode.JSON_SCHEMA: {found}")
