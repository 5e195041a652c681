"""The settings of the ledger: how usage is added up, kept, told to others and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from gateway.settings.sections import Name, Secret, Section, http_url

if TYPE_CHECKING:
    from typing import Self

_DAY_S = 86_400


class Sink(Section):
    """Where usage lines are sent as they come."""

    name: Name = Field(description="What it is called; its place in the lines is kept under it.")
    url: Annotated[str, AfterValidator(http_url)] = Field(
        description="What batches of CloudEvents 1.0 are posted to."
    )
    secret: Secret | None = Field(None, description="Sent as a bearer token.")
    customers: dict[str, str] = Field(
        default_factory=dict,
        description="What it calls tenants, by their names or ids.",
    )
    lines_max: PositiveInt = Field(500, le=20_000, description="Lines in one batch.")
    interval_s: PositiveFloat = Field(15.0, description="Seconds between two looks for new lines.")
    timeout_s: PositiveFloat = Field(30.0, description="Seconds that one answer may take.")


class Ledger(Section):
    """Usage lines: one for each response, added up and sent on."""

    rollup_interval_s: PositiveFloat = Field(
        15.0, description="Seconds between two rounds of adding new lines up."
    )
    rollup_lines_max: PositiveInt = Field(
        20_000, description="Lines that are added up in one transaction."
    )
    reconcile_interval_s: PositiveFloat = Field(
        3600.0, description="Seconds between two comparisons of lines, sums and responses."
    )
    reconcile_back_s: PositiveFloat = Field(
        2.0 * _DAY_S, description="Seconds that such a comparison looks back."
    )
    reconcile_logs_max: NonNegativeInt = Field(
        200, description="Lines that such a comparison holds against the logs of their responses."
    )
    lines_s: PositiveInt = Field(
        400 * _DAY_S,
        ge=2 * _DAY_S,
        description="Seconds that usage lines are kept, once they are added up and sent.",
    )
    minutes_s: PositiveInt = Field(
        2 * _DAY_S, description="Seconds that sums by the minute are kept."
    )
    hours_s: PositiveInt = Field(
        35 * _DAY_S, description="Seconds until sums by the hour become sums by the day."
    )
    days_s: PositiveInt = Field(400 * _DAY_S, description="Seconds that sums by the day are kept.")
    end_user_days_s: PositiveInt = Field(
        90 * _DAY_S, description="Seconds that sums by day and end user are kept."
    )
    results_max: PositiveInt = Field(
        20_000, description="Results that one page of a usage report may have."
    )
    source: str = Field(
        "harmony-gateway",
        min_length=1,
        max_length=128,
        description="The source of CloudEvents: the name of this installation.",
    )
    sinks: tuple[Sink, ...] = Field((), description="Where usage lines are sent as they come.")

    @model_validator(mode="after")
    def _hours_are_compared(self) -> Self:
        if self.hours_s < self.reconcile_back_s + 2 * _DAY_S:
            raise ValueError("hours_s must be two days more than reconcile_back_s")
        return self
