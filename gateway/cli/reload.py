"""SIGHUP: the configuration is read again, as a whole or not at all.

So a process always runs with one version of its file: a mistake in it, or a change of what is only
read at the start, changes nothing.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from gateway.cli.config import require_complete
from gateway.errors import StartupError
from gateway.settings import Settings
from gateway.settings.loading import variables
from gateway.telemetry.logs import EventLog, configure_logging
from gateway.upstreams.admission.slots import AdmissionPolicy
from gateway.wiring.membership import backends
from gateway.wiring.replica import claim_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.app import Gateway
    from gateway.server.server import Server
    from gateway.upstreams.backend import Backend

RELOADABLE: Final = frozenset(
    {
        "backends",
        "server.connections_max",
        "server.connections_per_peer_max",
        "admission.slots_max",
        "admission.first_token_target_s",
        "admission.queue_length_max",
        "admission.wait_max_s",
        "limits.body_bytes_max",
        "limits.body_timeout_s",
        "limits.responses_in_flight_max",
        "limits.request_timeout_s",
        "rate_limits.stale_max_s",
        "rate_limits.reads_per_minute_max",
        "background.running_max",
        "background.tenant_running_max",
        "background.tenant_queued_max",
        "websockets.connections_max",
        "log.level",
        "log.format",
    }
)
"""All others are read at the start only."""

_log = EventLog(__name__)
_SAME: Final = "everything stays as it was"
_PATHS: Final = tuple(variable.path for variable in variables(Settings))


@contextmanager
def hangups() -> Iterator[asyncio.Event]:
    """Yield an event that SIGHUP sets; it must end no process that starts, or that has drained."""
    loop, hangup = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    try:
        yield hangup
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Reloads:
    def __init__(
        self, settings: Settings, load: Callable[[], Settings], hangup: asyncio.Event
    ) -> None:
        # `settings` are those that `load` returned for the start.
        self._settings = settings
        self._load = load
        self._hangup = hangup

    async def run(self, app: Gateway, servers: Sequence[Server]) -> None:
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            reloaded = app.process.foundation.metrics.reloaded
            try:
                await self._once(app, servers)
                reloaded("ok")
            except Exception as error:  # noqa: BLE001 - a reload must never end the process
                reloaded("failed")
                reason = _SAME if isinstance(error, StartupError) else "a defect of the gateway"
                _log.error("the configuration was not reloaded", error=error, reason=reason)

    async def _once(self, app: Gateway, servers: Sequence[Server]) -> None:
        settings = await asyncio.to_thread(self._load)
        require_complete(settings)
        changed = changed_settings(self._settings, settings)
        _refuse(sorted(changed - RELOADABLE))
        new = _checked(backends(settings))
        take_over(app, servers, settings)
        await app.process.foundation.membership.replace_fixed(new)
        self._settings = settings
        listed = ", ".join(sorted(changed)) or "nothing in it has changed"
        _log.info("the configuration was reloaded", settings=listed)


def changed_settings(before: Settings, after: Settings) -> set[str]:
    """Return paths, such as `log.level`."""

    def value(settings: Settings, path: tuple[str, ...]) -> object:
        return reduce(getattr, path, settings)

    return {".".join(path) for path in _PATHS if value(before, path) != value(after, path)}


def _refuse(names: Sequence[str]) -> None:
    if names:
        raise StartupError(
            f"it takes a restart to change {', '.join(names)}",
            remedy="Restart the process, or put them back and send SIGHUP again.",
        )


def _checked(backends: Sequence[Backend]) -> list[Backend]:
    try:
        return [one.checked() for one in backends]
    except ValueError as error:
        raise StartupError(f"backends: {error}", remedy="Correct the URL.") from error


def take_over(app: Gateway, servers: Sequence[Server], settings: Settings) -> None:
    """Take over the reloadable settings but backends.

    Nothing waits or fails: no request sees a part of it.
    """
    process, limits = app.process, settings.limits
    base, replica, background = process.foundation, process.replica, settings.background
    archive, engine = replica.dependencies.archive, replica.dependencies.engine
    # The file does not have the values that come from the embedded database.
    own = {"database": base.settings.database, "auth": base.settings.auth}
    base.settings = settings.model_copy(update=own)
    configure_logging(settings.log.level, settings.log.format)
    for server in servers:
        server.follow(settings)
    process.body_bounds.bytes_max = limits.body_bytes_max
    process.body_bounds.timeout_s = limits.body_timeout_s
    replica.dependencies.supervisor.in_flight_max = limits.responses_in_flight_max
    engine.run_time_max_s = limits.request_timeout_s
    archive.ownership = replace(archive.ownership, claim_wait_s=limits.request_timeout_s)
    replica.limiter.timing = settings.rate_limits.fill(type(replica.limiter.timing))
    app.authentication.reads.per_minute = settings.rate_limits.reads_per_minute_max
    app.authentication.places.places_max = settings.server.connections_max
    replica.runs.claimed_max = background.running_max
    has_tools = replica.rooms.executor is not None
    replica.scheduler.limits = claim_limits(settings, has_tools=has_tools)
    process.access.defaults = process.federation.defaults = settings.tenant_policy
    base.sessions.places.places_max = settings.websockets.connections_max
    if base.pool.admission is not None:
        base.pool.admission.follow(settings.admission.fill(AdmissionPolicy))
