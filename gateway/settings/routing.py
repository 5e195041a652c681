"""The settings of routing: which backend a request goes to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from gateway.settings.sections import Section


class Routing(Section):
    """Choice of the backend for a request, where a model has several."""

    policy: Literal["prefix", "round_robin"] = Field(
        "prefix",
        description="prefix: the one that is expected to begin first, by what it has cached of the "
        "prompt and what it has to do; round_robin: in turns.",
    )
    kv_tokens: PositiveInt = Field(
        2_000_000, description="Tokens of cache of a backend that does not tell how many it has."
    )
