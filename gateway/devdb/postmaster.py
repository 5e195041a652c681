"""Read what a PostgreSQL server wrote to `postmaster.pid`, and check whether it still runs.

The file's lines: process id, data folder, start time, port, socket folder, listen address, shared
memory key, status (PostgreSQL 18, src/include/utils/pidfile.h).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PID_FILE: Final = "postmaster.pid"
_SOCKET_FOLDER_LINE: Final = 4
_STATUS_LINE: Final = 7
_POLL_INTERVAL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The server that last wrote the file. `cluster` is its data folder, with links resolved."""

    pid: int
    cluster: Path
    socket_folder: Path | None
    is_ready: bool

    @classmethod
    def read(cls, cluster: Path) -> Postmaster | None:
        """Read the PID file; None when it does not exist or is incomplete."""
        try:
            lines = (cluster / PID_FILE).read_text("utf-8").splitlines()
            pid = int(lines[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        lines += [""] * (_STATUS_LINE + 1 - len(lines))
        folder = lines[_SOCKET_FOLDER_LINE].strip()
        return cls(
            pid=pid,
            cluster=cluster.resolve(),
            socket_folder=Path(folder) if folder else None,
            is_ready=lines[_STATUS_LINE].strip() == "ready",
        )

    def is_running(self) -> bool:
        """Return True if a live server of this data folder has the process id.

        A zombie does not count, nor does another process that was given the id later, as usually
        happens after a restart of a container.
        """
        process = Path(f"/proc/{self.pid}")
        try:
            return (process / "cwd").readlink() == self.cluster
        except (FileNotFoundError, ProcessLookupError):
            return not _has_proc() and _looks_like_postgres(self.pid)
        except PermissionError:  # another user's, and no CAP_SYS_PTRACE in this container
            return _looks_like_postgres(self.pid)

    def holds_pid(self) -> bool:
        """Return True if any process has the id. PostgreSQL may refuse to start then."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def stop(self, timeout_s: float) -> bool:
        """Request a fast shutdown; return False if the server still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_INTERVAL_S)
        return True


def adopt_pid_file(cluster: Path) -> None:
    """Write our process id into a stale PID file.

    A server ignores a PID file that names its parent. Removing the file would also remove the
    shared memory key by which the server notices that backends of the last one still run.
    """
    path = cluster / PID_FILE
    rest = path.read_text("utf-8").partition("\n")[2]
    path.write_text(f"{os.getpid()}\n{rest}", "utf-8")


def _looks_like_postgres(pid: int) -> bool:
    # By the name of the program, which every user may read.
    if not _has_proc():
        listing = subprocess.run(  # noqa: S603 - our own arguments, no shell
            ["/bin/ps", "-o", "comm=", "-p", str(pid)], capture_output=True, check=False
        )
        return listing.stdout.strip().endswith(b"postgres")
    try:
        name, _, state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return name.endswith("(postgres") and state.split()[0] not in {"Z", "X"}


def _has_proc() -> bool:
    return Path("/proc/self").exists()
