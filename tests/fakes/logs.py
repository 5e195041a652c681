"""What is logged, as the fields of each event."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gateway.telemetry.logs import outlet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def captured_logs(
    heard: Callable[[], None] | None = None, *, of: str | None = None
) -> Iterator[list[dict[str, Any]]]:
    """The events of this package while entered, of whatever level; `heard` is called with each.

    `of` is the one logger whose events they are: gateways that several tests share go on working
    meanwhile, and may log something, too.
    """
    events: list[dict[str, Any]] = []

    def take(level: str, event: dict[str, Any]) -> None:
        if of not in {None, event["logger"]}:
            return
        events.append(event | {"level": level})
        if heard is not None:
            heard()

    before = outlet.least, outlet.take
    outlet.least, outlet.take = logging.DEBUG, take
    try:
        yield events
    finally:
        outlet.least, outlet.take = before
