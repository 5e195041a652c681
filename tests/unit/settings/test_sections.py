"""How sections give the parts of a process their bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine.failover import HopPolicy
from gateway.engine.output_guard import GuardLimits
from gateway.settings import sections
from gateway.settings.tools import Web
from gateway.store.claims import ClaimTerms
from gateway.tools.browser.extraction import ReadLimits
from gateway.tools.browser.fetch import FetchLimits
from gateway.upstreams.pool import PoolPolicy, ProbeSchedule

if TYPE_CHECKING:
    from gateway.settings.sections import Section


@dataclass(frozen=True)
class Bounds:
    lease_s: float
    attempts_max: int = 0
    pause_s: float = 7.0


def test_a_section_fills_the_fields_that_have_its_names() -> None:
    background = sections.Background(lease_s=20.0, attempts_max=2)
    assert background.fill(Bounds) == Bounds(20.0, 2, 7.0)
    assert background.fill(Bounds, lease_s=1.0, pause_s=2.0) == Bounds(1.0, 2, 2.0)


@pytest.mark.parametrize(
    ("section", "bounds", "others"),
    [
        (
            sections.Background,
            ClaimTerms,
            {"fold_versions", "late_fold_versions", "late_s", "promotion_s"},
        ),
        (
            sections.Generation,
            GuardLimits,
            {"header_tokens_max", "messages_max", "repairs_max", "preamble_tokens_max"},
        ),
        (Web, FetchLimits, {"timeout_s", "redirects_max", "visits_max", "robots_kept_s"}),
        (
            Web,
            ReadLimits,
            {"document_timeout_s", "document_memory_bytes_max", "text_chars_max", "pdf_pages_max"},
        ),
        (
            sections.Upstream,
            ProbeSchedule,
            {
                "health_timeout_s",
                "describe_interval_s",
                "describe_timeout_s",
                "working_health_timeout_s",
            },
        ),
        (sections.Upstream, HopPolicy, {"upstream_wait_s", "pause_s", "pause_max_s"}),
        (
            sections.Upstream,
            PoolPolicy,
            {"timeouts", "limits", "ejection", "schedule", "silent_s", "leave_s"},
        ),
    ],
)
def test_no_bound_loses_its_setting(section: type[Section], bounds: Any, others: set[str]) -> None:
    """What a section does not fill is known here: a setting or a field that is given another name
    would leave the bound at its own default.
    """
    assert {one.name for one in fields(bounds)} - set(section.model_fields) == others
