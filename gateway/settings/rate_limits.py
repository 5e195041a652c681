"""The settings of limits that tenants, projects and keys have; the limits themselves are data."""

from __future__ import annotations

from pydantic import Field, PositiveFloat

from gateway.settings.sections import Section


class RateLimits(Section):
    """How replicas keep limits and budgets together: docs/limits.md. `harmony-gateway limits` sets
    them.
    """

    sync_interval_s: PositiveFloat = Field(
        1.0,
        le=3,
        description="Seconds between two looks of a replica at what the others use, while any of "
        "its keys has limits.",
    )
    stale_max_s: PositiveFloat = Field(
        900.0,
        description="Seconds that limits hold while the database is away, each replica with its "
        "share; then requests of keys that have some are answered 503.",
    )
