"""The settings of admission: how much a backend is sent at once, and what becomes of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from gateway.settings.sections import Section

if TYPE_CHECKING:
    from typing import Self


class Admission(Section):
    """Requests wait in the gateway when the backends have enough to do."""

    enabled: bool = Field(
        default=True, description="false: all requests are sent on at once, and wait at backends."
    )
    slots_start: PositiveInt = Field(
        16,
        description="Requests that one backend is sent at once by this process, at first. While it "
        "answers in time, that doubles with each round.",
    )
    slots_min: PositiveInt = Field(4, description="The least that is learned from late answers.")
    slots_max: PositiveInt = Field(16_384, description="The most that is learned from early ones.")
    first_token_target_s: PositiveFloat = Field(
        2.0,
        description="Seconds to the first token, beside those to read the prompt, from which on a "
        "backend counts as late; where more of them are, it is sent fewer requests at once.",
    )
    background_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Share of the slots that background responses and service_tier flex may take.",
    )
    queue_length_max: PositiveInt = Field(
        1_000,
        description="Requests that wait for a backend in this process; one more is answered 503. "
        "A few background responses come on top; the others wait in the database.",
    )
    wait_max_s: PositiveFloat = Field(
        3.0,
        description="Seconds a request may wait for a backend until it is answered 503; more where "
        "clients do not try again by themselves, as OpenAI's SDKs do.",
    )
    background_wait_max_s: PositiveFloat = Field(
        600.0, description="The same for a background response, which fails then."
    )

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if not self.slots_min <= self.slots_start <= self.slots_max:
            raise ValueError("expected slots_min <= slots_start <= slots_max")
        return self
