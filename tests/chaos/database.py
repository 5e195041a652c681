"""A PostgreSQL of the fleet's own that can be killed, frozen and started again, on one TCP port.

Nothing is relaxed here: what it has acknowledged must be there after kill -9.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import asyncpg
import psutil

from gateway.devdb.embedded import EmbeddedPostgres, Postmaster

if TYPE_CHECKING:
    from pathlib import Path

_CLIENTS: Final = """
SELECT pid FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class ChaosPostgres:
    """One cluster in `folder`. All methods block; none waits longer than a start takes."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._server = self._new_server()

    @property
    def url(self) -> str:
        """The superuser's; the same after every restart."""
        password = (self._folder / "password").read_text("utf-8")
        return f"postgresql://harmony:{password}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Return when it accepts connections, after recovery if it was killed."""
        self._server.start()

    def stop(self) -> None:
        """Shut it down, also when it is frozen."""
        self.thaw()
        self._server.stop()

    def kill(self) -> None:
        """SIGKILL for the server and every process of it; returns when the server is gone."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._server.stop()  # it is dead: this reaps it
        self._server = self._new_server()

    async def kill_one_connection(self) -> int:
        """SIGKILL for one process that serves a client: the server throws all clients out.

        Returns its process id.
        """
        connection = await asyncpg.connect(self.url)
        try:
            pid: int = await connection.fetchval(_CLIENTS)
        finally:
            await connection.close()
        psutil.Process(pid).kill()
        return pid

    def freeze(self) -> None:
        """SIGSTOP for all of it: connections stay open, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT for all of it."""
        self._signal(signal.SIGCONT)

    def _new_server(self) -> EmbeddedPostgres:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "max_connections": "200",
        }
        return EmbeddedPostgres(self._folder, settings=settings)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        """The server first, then all that it has started."""
        state = Postmaster.read(self._folder / "cluster")
        if state is None or not state.is_running():
            return []
        server = psutil.Process(state.pid)
        return [server, *server.children(recursive=True)]
