"""The settings of admission: how much a backend is sent at once, and what becomes of the rest."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from gateway.settings.sections import Section


class Admission(Section):
    """Requests wait in the gateway when the backends have enough to do."""

    enabled: bool = Field(
        default=True, description="false: all requests are sent on at once, and wait at backends."
    )
    slots_max: PositiveInt = Field(
        16_384,
        description="Requests that one backend is sent at once by this process, at most. How many "
        "it can do in time is learned; set it where a server should never hold more.",
    )
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
