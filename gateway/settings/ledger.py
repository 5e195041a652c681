"""The settings of the ledger: how usage is added up, kept, sent to others and checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    AfterValidator,
    Field,
    PositiveInt,
)

from gateway.settings.sections import Name, Secret, Section, http_url

_DAY_S = 86_400


class Sink(Section):
    """A receiver of usage lines, which are sent as they come."""

    name: Name = Field(description="What it is called; its place in the lines is kept under it.")
    url: Annotated[str, AfterValidator(http_url)] = Field(
        description="What batches of CloudEvents 1.0 are posted to."
    )
    secret: Secret | None = Field(None, description="Sent as a bearer token.")
    customers: dict[str, str] = Field(
        default_factory=dict,
        description="What it calls tenants, by their names or ids.",
    )


class Ledger(Section):
    """Usage lines: one for each response, added up and sent on."""

    lines_s: PositiveInt = Field(
        400 * _DAY_S,
        ge=2 * _DAY_S,
        description="Seconds that usage lines are kept, once they are added up and sent.",
    )
    minutes_s: PositiveInt = Field(
        2 * _DAY_S, description="Seconds that sums by the minute are kept."
    )
    hours_s: int = Field(
        35 * _DAY_S,
        ge=4 * _DAY_S,
        description="Seconds until sums by the hour become sums by the day.",
    )
    days_s: PositiveInt = Field(400 * _DAY_S, description="Seconds that sums by the day are kept.")
    end_user_days_s: PositiveInt = Field(
        90 * _DAY_S, description="Seconds that sums by day and end user are kept."
    )
    source: str = Field(
        "harmony-gateway",
        min_length=1,
        max_length=128,
        description="The source of CloudEvents: the name of this installation.",
    )
    sinks: tuple[Sink, ...] = Field((), description="Where usage lines are sent as they come.")
