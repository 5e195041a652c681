"""Who is told of what: notices from here to here, to other replicas, and from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.eventlog.log_watcher import LogWatcher
    from gateway.eventlog.notifications import Notifier
    from gateway.replication.lease_keeper import LeaseKeeper
    from gateway.store.notifications import Notice
    from gateway.telemetry import Metrics


class Switchboard:
    """Passes notices on, never waits, and is not needed: all it tells is found by looking, too."""

    def __init__(
        self, watcher: LogWatcher, keeper: LeaseKeeper, notifier: Notifier | None, metrics: Metrics
    ) -> None:
        """`notifier` None: other replicas are told nothing."""
        self._tails = watcher
        self._keeper = keeper
        self._notifier = notifier
        self._metrics = metrics
        self._wake: Callable[[], None] | None = None

    def when_there_is_work(self, wake: Callable[[], None]) -> None:
        """Call `wake` then: the one who claims is built from what announces."""
        self._wake = wake

    def announce(self, notice: Notice) -> None:
        """Something happened here."""
        self._pass_on(notice)
        if self._notifier is not None:
            self._notifier.announce(notice)

    def hear(self, notice: Notice) -> None:
        """Something happened at a replica, which may be this one."""
        self._metrics.notice_heard(notice.kind)
        if notice.kind != "follow":
            self._pass_on(notice)
        elif self._notifier is not None:
            self._notifier.followed(notice.responses)

    def missed(self) -> None:
        """Anything may have happened."""
        self._tails.look_at_all()
        if self._wake is not None:
            self._wake()

    def _pass_on(self, notice: Notice) -> None:
        self._tails.look_soon(notice.responses)
        if notice.kind == "ended":
            self._keeper.ended(notice.responses)
        if notice.kind == "work" and self._wake is not None:
            self._wake()
