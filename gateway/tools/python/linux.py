"""CPython in bubblewrap, without network, files or rights.

Containers share the host's kernel: for tenants that do not trust each other use gVisor, or another
machine (`remote.py`). The filter of system calls is a second wall: it refuses what has broken out
of namespaces before, and allows the rest, because numerical libraries use hundreds. A control group
bounds all processes of a container together; `rlimit` bounds each.

Sources: https://github.com/containers/bubblewrap, and the attacks in `self_test.py`, each of which
succeeds without one of these walls; https://docs.kernel.org/userspace-api/seccomp_filter.html;
https://docs.kernel.org/admin-guide/cgroup-v2.html, and `cgroup-v1` beside it.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from typing_extensions import override

from gateway.tools.python.container_engine import (
    ContainerCapabilities,
    ContainerEngine,
    ContainerLimits,
    EngineBroken,
    EngineName,
)
from gateway.tools.python.gvisor import Bundle
from gateway.tools.python.worker_process import WorkerContainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_CALLS: Final[Mapping[str, tuple[int | None, int | None]]] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161),
    "setdomainname": (171, 162), "init_module": (175, 105), "delete_module": (176, 106),
    "finit_module": (313, 273), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "bpf": (321, 280), "perf_event_open": (298, 241), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "pidfd_getfd": (438, 438), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "acct": (163, 89), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "syslog": (103, 116), "vhangup": (153, 58), "personality": (135, 92),
    "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "iopl": (172, None),
    "ioperm": (173, None), "clone": (56, 220), "clone3": (435, 435), "socket": (41, 198),
    "socketpair": (53, 199),
}  # fmt: skip
"""x86_64 and aarch64, of the kernel's `syscall_64.tbl` and `asm-generic/unistd.h`."""
_MACHINES: Final[Mapping[str, tuple[int, int]]] = {
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
}
"""The kernel's number, and the column above."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENT_AT = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_X32_BIT: Final = 0x40000000
"""A second numbering on x86_64."""
_LOOKED_AT: Final = frozenset({"clone", "clone3", "socket", "socketpair"})
"""Allowed or not by their arguments."""
_CLONE_NEWUSER: Final = 0x10000000


def seccomp_filter(machine: str) -> bytes:
    """Return the filter for `bwrap --seccomp`. Raises `KeyError`."""
    number_of_machine, column = _MACHINES[machine]
    numbers = ((name, both[column]) for name, both in _CALLS.items())
    calls = {name: number for name, number in numbers if number is not None}
    refused = [number for name, number in calls.items() if name not in _LOOKED_AT]
    code = [
        _step(_LOAD, _MACHINE_AT),
        _step(_EQUAL, number_of_machine, then=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [_step(_AT_LEAST, _X32_BIT, otherwise=1), _step(_RETURN, _ERROR | errno.ENOSYS)]
    for number in refused:
        code += [_step(_EQUAL, number, otherwise=1), _step(_RETURN, _ERROR | errno.EPERM)]
    # Its flags are behind a pointer, where no filter sees them; without it, clone is used.
    code += [_step(_EQUAL, calls["clone3"], otherwise=1), _step(_RETURN, _ERROR | errno.ENOSYS)]
    code += [
        _step(_EQUAL, calls["clone"], otherwise=3),
        _step(_LOAD, _ARGUMENT_AT),
        _step(_ANY_BIT, _CLONE_NEWUSER, otherwise=5),
        _step(_RETURN, _ERROR | errno.EPERM),
        _step(_EQUAL, calls["socket"], then=1),
        _step(_EQUAL, calls["socketpair"], otherwise=2),
        _step(_LOAD, _ARGUMENT_AT),
        _step(_EQUAL, socket.AF_UNIX, otherwise=1),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _ERROR | errno.EPERM),
    ]
    return b"".join(code)


def _step(operation: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    # `struct sock_filter` of the kernel. Jumps count the instructions to skip.
    return struct.pack("=HBBI", operation, then, otherwise, value)


ROOT: Final = Path("/sys/fs/cgroup")
_FOLDER: Final = "harmony-gateway"
_PERIOD_US: Final = 100_000
_CONTROLLERS: Final = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Folders of groups: one for version 2, one for each controller for version 1."""

    folders: tuple[Path, ...]
    is_unified: bool

    @classmethod
    def find(cls, root: Path = ROOT) -> Cgroups | None:
        """Return None if groups with a memory limit cannot be made."""
        if (root / "cgroup.controllers").exists():
            return cls._unified(root / _FOLDER)
        folders = [root / name / _FOLDER for name in _CONTROLLERS if (root / name).is_dir()]
        made = tuple(folder for folder in folders if _is_made(folder))
        has_memory = any((folder / "memory.limit_in_bytes").exists() for folder in made)
        return cls(made, is_unified=False) if has_memory else None

    @classmethod
    def _unified(cls, folder: Path) -> Cgroups | None:
        if not _is_made(folder):
            return None
        enabled = " ".join(f"+{name}" for name in _CONTROLLERS)
        try:
            for above in (folder.parent, folder):
                (above / "cgroup.subtree_control").write_text(enabled, "ascii")
        except OSError:
            return None
        return cls((folder,), is_unified=True)

    def enter(self, name: str, pid: int, limits: ContainerLimits) -> Cgroup:
        """Move a process and its children into a new group. Raises `OSError`."""
        self._sweep()
        group = Cgroup(tuple(folder / f"{os.getpid()}-{name}" for folder in self.folders))
        try:
            for folder in group.folders:
                folder.mkdir()
                for file, value in self._values(limits).items():
                    if (folder / file).exists():
                        (folder / file).write_text(value, "ascii")
                for each in descendants(pid):
                    (folder / "cgroup.procs").write_text(str(each), "ascii")
        except OSError:
            group.remove()
            raise
        return group

    def _sweep(self) -> None:
        # A container's group may not be empty yet when the container ends: its processes die a
        # moment later. Groups of other living gateways stay.
        for folder in self.folders:
            for left in folder.glob("*-*"):
                owner = left.name.partition("-")[0]
                if owner == str(os.getpid()) or not Path(f"/proc/{owner}").exists():
                    with suppress(OSError):
                        left.rmdir()

    def _values(self, limits: ContainerLimits) -> Mapping[str, str]:
        memory, processes = str(limits.memory_bytes), str(limits.processes)
        if self.is_unified:
            return {
                "memory.max": memory,
                "memory.swap.max": "0",
                "pids.max": processes,
                "cpu.max": f"{_PERIOD_US} {_PERIOD_US}",
            }
        return {
            "memory.limit_in_bytes": memory,
            "pids.max": processes,
            "cpu.cfs_period_us": str(_PERIOD_US),
            "cpu.cfs_quota_us": str(_PERIOD_US),
        }


@dataclass(frozen=True, slots=True)
class Cgroup:
    folders: tuple[Path, ...]

    def remove(self) -> None:
        # A group that still has a process is deleted by a later container.
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()


def descendants(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text("ascii")
            for child in children.split():
                yield from descendants(int(child))


def _is_made(folder: Path) -> bool:
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        return os.access(folder, os.W_OK)
    return False


WORKER: Final = Path(__file__).with_name("worker.py")
INTERPRETERS: Final = (Path("/opt/sandbox/bin/python"), Path("/usr/bin/python3"))
_SYSTEM: Final = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/matplotlibrc",
    "/usr/share/fonts",
    "/usr/share/matplotlib",
    "/usr/share/zoneinfo",
)
_ASK: Final = "import sys; print(sys.prefix); print(sys.base_prefix); print(sys.executable)"
_ASK_TIMEOUT_S: Final = 20.0
_LAUNCH: Final = """
import ctypes, os, sys
libc, uid, ends = ctypes.CDLL(None), int(sys.argv[1]), sys.argv[2] == "ends"
if uid:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
if ends:
    libc.prctl(1, 9)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Gives up root, has itself killed with this process on request, and becomes another program.
uvloop cannot start a process as another user."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    executable: str
    paths: tuple[str, ...]

    @classmethod
    async def inspect(cls, executable: Path) -> Interpreter:
        try:
            process = await asyncio.create_subprocess_exec(
                str(executable), "-I", "-c", _ASK,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, env={}, cwd="/",
            )  # fmt: skip
            try:
                async with asyncio.timeout(_ASK_TIMEOUT_S):
                    output, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
            prefix, base, name = output.decode().splitlines()
        except (OSError, ValueError, TimeoutError) as error:
            raise EngineBroken(f"{executable} is no interpreter that can be asked") from error
        paths = list(_chain(Path(name)))
        if prefix != base:
            paths.append(prefix)
        if base != "/usr":
            paths.append(f"{base}/lib")
        return cls(name, tuple(dict.fromkeys(paths)))


def _chain(path: Path) -> list[str]:
    # The path and the targets of its symbolic links.
    paths = [str(path)]
    while path.is_symlink() and len(paths) < 8:
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
        paths.append(str(path))
    return paths


def command(
    interpreter: Interpreter, limits: ContainerLimits, *, filter_fd: int, bwrap: str = "bwrap"
) -> list[str]:
    """Return the command line; bubblewrap reads the filter from `filter_fd`."""
    walls = [
        *("--unshare-user", "--unshare-all", "--disable-userns", "--cap-drop", "ALL"),
        *("--new-session", "--die-with-parent", "--hostname", "sandbox"),
        *("--uid", "1000", "--gid", "1000", "--seccomp", str(filter_fd)),
        *("--tmpfs", "/", "--proc", "/proc", "--dev", "/dev"),
    ]
    size = str(limits.data_bytes)
    walls += ["--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", "/mnt/data"]  # noqa: S108
    for path in _without_nested((*_SYSTEM, *interpreter.paths, str(WORKER))):
        if os.path.islink(path):
            walls += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            walls += ["--ro-bind", path, path]
    walls += ["--remount-ro", "/", "--chdir", "/mnt/data", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        walls += ["--setenv", name, value]
    return [bwrap, *walls, "--", *worker_words(interpreter, limits)]


def worker_words(interpreter: Interpreter, limits: ContainerLimits) -> list[str]:
    resources = json.dumps(limits.resources())
    return [interpreter.executable, "-I", "-B", str(WORKER), resources]


def _without_nested(paths: tuple[str, ...]) -> list[str]:
    # A mounted folder includes the paths below it.
    unique = list(dict.fromkeys(paths))
    return [
        path
        for path in unique
        if not any(path.startswith(f"{other}/") and os.path.isdir(other) for other in unique)
    ]


_ENVIRONMENT: Final[Mapping[str, str]] = {
    "HOME": "/mnt/data",
    "LANG": "C.UTF-8",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp",  # noqa: S108 - of the sandbox
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin",
    "TMPDIR": "/tmp",  # noqa: S108
}


@dataclass(frozen=True, slots=True)
class LinuxOptions:
    """`uids` are for containers of a gateway that runs as root. `cgroups` None: no control groups.
    `runsc`: gVisor, in bubblewrap's place.
    """

    interpreter: Path | None = None
    uids: range = range(61_184, 61_440)
    bwrap: str = "bwrap"
    runsc: str | None = None
    cgroups: Cgroups | None = None


class LinuxEngine(ContainerEngine):
    """Engine with a process for each container, never as root."""

    name: EngineName = "linux"

    def __init__(self, options: LinuxOptions) -> None:
        self._options = options
        self._interpreter: Interpreter | None = None
        # Two gateways of a machine shall not begin with the same one.
        begin = secrets.randbelow(len(options.uids))
        uids: list[int] = [*options.uids[begin:], *options.uids[:begin]]
        self._uids = itertools.cycle(uids)
        self._taken: set[int] = set()

    @override
    async def describe(self) -> ContainerCapabilities:
        await asyncio.to_thread(_end_orphans)
        container = await self.open(ContainerLimits())
        await container.close()
        return ContainerCapabilities(f"CPython {container.version}", container.packages)

    @override
    async def open(self, limits: ContainerLimits) -> WorkerContainer:
        interpreter = await self._find_interpreter()
        uid = self._take_uid()
        try:
            container = await self._start(interpreter, limits, uid)
        except BaseException as error:
            self._taken.discard(uid or 0)
            if isinstance(error, OSError | KeyError):
                raise EngineBroken(f"bubblewrap could not be started: {error}") from error
            raise
        container.on_closed.append(lambda: self._taken.discard(uid or 0))
        await container.begin(timeout_s=limits.start_timeout_s)
        if self._options.cgroups is not None:
            bounds = limits if self._options.runsc is None else Bundle.around(limits)
            try:
                group = self._options.cgroups.enter(secrets.token_hex(8), container.pid, bounds)
            except OSError as error:
                await container.close()
                raise EngineBroken(f"a control group could not be made: {error}") from error
            container.on_closed.append(group.remove)
        return container

    @override
    async def close(self) -> None:
        # Its containers are closed already, and it holds nothing else.
        pass

    async def _find_interpreter(self) -> Interpreter:
        if self._interpreter is None:
            chosen = self._options.interpreter
            paths = INTERPRETERS if chosen is None else (chosen,)
            there = next((path for path in paths if path.exists()), None)
            if there is None:
                tried = ", ".join(map(str, paths))
                raise EngineBroken(f"there is no interpreter at {tried}: set tools.python")
            self._interpreter = await Interpreter.inspect(there)
        return self._interpreter

    def _take_uid(self) -> int | None:
        # A uid that no living container has. Raises `EngineBroken` where there is none.
        if os.getuid() != 0:
            return None
        for uid in itertools.islice(self._uids, len(self._options.uids)):
            if uid not in self._taken and uid != 0:
                self._taken.add(uid)
                return uid
        raise EngineBroken("every user id for containers is in use")

    async def _start(
        self, interpreter: Interpreter, limits: ContainerLimits, uid: int | None
    ) -> WorkerContainer:
        if self._options.runsc is not None:
            return await self._start_in_gvisor(self._options.runsc, interpreter, limits, uid)
        bwrap = shutil.which(self._options.bwrap)
        if bwrap is None:
            raise EngineBroken(f"{self._options.bwrap} is not installed")
        with os.fdopen(os.memfd_create("seccomp"), "w+b") as program:
            program.write(seccomp_filter(platform.machine()))
            program.seek(0)
            read = program.fileno()
            words = command(interpreter, limits, filter_fd=read, bwrap=bwrap)
            # bwrap ends with this process once it is set up (`--die-with-parent`). If it is killed
            # before, its child waits for it for ever; a worker notices that its pipes are closed.
            launched = _launched(uid, "goes on")
            return await WorkerContainer.start([*launched, *words], pass_fds=[read])

    @staticmethod
    async def _start_in_gvisor(
        runsc: str, interpreter: Interpreter, limits: ContainerLimits, uid: int | None
    ) -> WorkerContainer:
        executable = shutil.which(runsc)
        if executable is None:
            raise EngineBroken(f"{runsc} is not installed")
        paths = _without_nested((*_SYSTEM, *interpreter.paths, str(WORKER)))
        worker = worker_words(interpreter, limits)
        bundle = Bundle.made(worker, paths, _ENVIRONMENT, limits, uid)
        try:
            words = [*_launched(uid, "ends"), *bundle.command(executable)]
            container = await WorkerContainer.start(words, pass_fds=[])
        except BaseException:
            bundle.remove()
            raise
        container.on_closed.append(bundle.remove)
        return container


def _launched(uid: int | None, when_killed: Literal["ends", "goes on"]) -> list[str]:
    # A prefix for a command that another user may have to run; `when_killed` is its fate when this
    # process is killed.
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(uid or 0), when_killed]


def _end_orphans() -> None:
    # A gateway that is killed while it opens a container leaves the first process of its namespace
    # behind. That process has run nothing, and waits for ever.
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # Held, so that its number cannot become another process's meanwhile.
            process = os.pidfd_open(int(entry.name))
            try:
                if _is_orphan(entry):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


def _is_orphan(entry: Path) -> bool:
    # Raises `OSError` where the process cannot be read.
    if str(WORKER).encode() not in (entry / "cmdline").read_bytes().split(b"\0"):
        return False
    status = _status(entry)
    if status["Name"] != "bwrap" or status["NSpid"].split()[1:] != ["1"]:
        return False
    try:
        return _status(entry.with_name(status["PPid"]))["Name"] != "bwrap"
    except OSError:
        return True


def _status(entry: Path) -> dict[str, str]:
    # Source: proc(5).
    lines = (entry / "status").read_text().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
