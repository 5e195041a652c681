"""instructor: a Pydantic model for an answer, asked for by a forced call."""

from __future__ import annotations

from typing import Any

import instructor
from answering import MODEL, answer
from openai import OpenAI
from pydantic import BaseModel

MODES = {"responses": instructor.Mode.RESPONSES_TOOLS, "chat": instructor.Mode.TOOLS}


class ParserPosition(BaseModel):
    """A place on the map."""

    location: str


def extract(*, mode: str) -> dict[str, Any]:
    client = instructor.from_openai(OpenAI(), mode=MODES[mode])
    place = client.create(
        model=MODEL,
        messages=[{"role": "user", "content": "The weather in Paris, please."}],
        response_model=ParserPosition,
        max_retries=0,
    )
    return place.model_dump()


answer(extract)
