"""The settings of routing: which backend a request goes to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from gateway.settings.sections import Section


class Routing(Section):
    """Which of several backends of a model a request goes to."""

    policy: Literal["prefix", "round_robin"] = Field(
        "prefix",
        description="prefix: the one that is expected to begin first, by what it has cached of the "
        "prompt and what it has to do; round_robin: in turns.",
    )
    uncached_weight: float = Field(
        2.0,
        ge=1,
        le=3,
        description="How often the time to read what a backend has not cached counts against the "
        "time that it is busy; more keeps sessions where they are.",
    )
    delay_slack_share: float = Field(
        0.5,
        ge=0.5,
        le=1,
        description="Share by which a backend may be busier than the idlest one at no cost.",
    )
    request_s: float = Field(
        0.004, ge=0, le=1, description="Seconds that each request under way adds to a delay."
    )
    waiting_s: float = Field(
        0.1,
        ge=0.001,
        le=10,
        description="Seconds that each request adds that waits by a backend's own account.",
    )
    drain_share: float = Field(
        0.7,
        ge=0,
        le=1,
        description="Share of its speed at which a backend is taken to work off what was told.",
    )
    read_tokens_per_s: float = Field(
        8_000.0,
        ge=100,
        le=1_000_000,
        description="Tokens a second that a backend reads, until it is known of any.",
    )
    horizon_s: float = Field(
        3600.0,
        ge=5,
        le=86_400,
        description="Seconds that a backend is taken to keep what nobody uses, at first; what it "
        "reports of cached tokens corrects that.",
    )
    entries_max: PositiveInt = Field(
        200_000, le=200_000, description="Prefixes that are remembered; 170 bytes each."
    )
    kv_tokens: PositiveInt = Field(
        2_000_000, description="Tokens of cache of a backend that does not tell how many it has."
    )
    exchange_interval_s: float = Field(
        1.0,
        ge=0.1,
        le=60,
        description="Seconds between two batches in which replicas tell what they placed.",
    )
    exchange_entries_max: PositiveInt = Field(
        4_096, le=65_536, description="Prefixes in one batch; the oldest are left out."
    )
    peer_expiry_s: float = Field(
        10.0, ge=1, le=600, description="Seconds for which the load counts that a replica told."
    )
    hold_back_delay_s: float = Field(
        0.7,
        ge=0.01,
        le=60,
        description="Median delay in seconds above which new sessions wait in the gateway, and "
        "those under way go first.",
    )
