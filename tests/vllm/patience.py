"""Settings of gateways in front of real servers, which may run on a machine that is busy."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gateway.upstreams.tokenization import Tokenization
from tests.fakes.bounds import bounds
from tests.fakes.gateway import gateway_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from gateway.settings import Settings

PATIENT_S = 120.0
"""How long a server may be silent that is slow, and not broken."""
UPSTREAM: dict[str, float] = {"stall_timeout_s": PATIENT_S}


@contextmanager
def patient() -> Iterator[None]:
    """Let gateways of this process wait longer than one in production does."""
    probes = {"health_timeout_s": PATIENT_S, "describe_timeout_s": PATIENT_S}
    with (
        bounds("foundation.Timeouts", connect_s=PATIENT_S),
        bounds("foundation.ProbeSchedule", **probes),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(
            "gateway.wiring.process.Tokenization", partial(Tokenization, timeout_s=PATIENT_S)
        )
        yield


def patient_settings(database_url: str, backends: Sequence[str], **sections: Any) -> Settings:
    """As `gateway_settings`; only a connection that is refused or closed is a lost server."""
    admission = {"wait_max_s": PATIENT_S}
    return gateway_settings(
        database_url, backends, upstream=UPSTREAM, **{"admission": admission, **sections}
    )
