"""Requests to a replica, whichever release it is of."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from tests.fakes.processes import STEP_S
from tests.upgrade.releases import TIMEOUT_S

if TYPE_CHECKING:
    from tests.upgrade.releases import Replica

Json = dict[str, Any]

MODEL: Final = "gpt-oss-20b"


def created(replica: Replica, *, headers: dict[str, str] | None = None, **body: Any) -> Json:
    """A response, once it is over or accepted."""
    answer = replica.client.post(
        "/v1/responses", json={"model": MODEL, **body}, headers=headers or {}
    )
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    return response


def ended(replica: Replica, response_id: str) -> Json:
    """Polled until it is over."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        answer = replica.client.get(f"/v1/responses/{response_id}")
        assert answer.status_code == 200, answer.text
        response: Json = answer.json()
        if response["status"] not in {"queued", "in_progress"}:
            return response
        assert time.monotonic() < deadline, response
        time.sleep(STEP_S)


def id_of(frame: str) -> str:
    """The response that a first frame tells of."""
    found = re.search(r'"response":\{"id":"(\w+)"', frame)
    assert found is not None
    return found[1]
