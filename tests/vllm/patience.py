"""Settings of gateways in front of real servers, which may run on a machine that is busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.gateway import gateway_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gateway.settings import Settings

PATIENT_S = 120.0
"""How long a server may be silent that is slow, and not broken."""
UPSTREAM: dict[str, float] = {
    "connect_timeout_s": PATIENT_S,
    "stall_timeout_s": PATIENT_S,
    "probe_timeout_s": PATIENT_S,
    "health_timeout_s": PATIENT_S,
    "render_timeout_s": PATIENT_S,
}


def patient_settings(database_url: str, backends: Sequence[str], **sections: Any) -> Settings:
    """As `gateway_settings`; only a connection that is refused or closed is a lost server."""
    return gateway_settings(database_url, backends, upstream=UPSTREAM, **sections)
