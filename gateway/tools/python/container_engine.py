"""Interface of the engines that run Python: an engine opens containers, and a container runs code.

    ContainerEngine opens containers; describes what they can do
    Container       one interpreter with its files: names survive from one run to the next
    RunResult             the result of a run

A container is untrusted: what it returns about a run, a file or itself is data, which the caller
checks against bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from posixpath import normpath
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Mapping


DATA: Final = "/mnt/data"
"""The folder of a container that outlives its runs."""
PATH_CHARS_MAX: Final = 512
NAME_BYTES_MAX: Final = 255
"""Linux's bound on one part of a path."""
TIMEOUT_MAX_S: Final = 120.0
INTERRUPT_GRACE_S: Final = 2.0
"""So long code has to end after it was interrupted, before its container is killed."""

EngineName = Literal["linux", "monty", "remote"]
RunStatus = Literal["ok", "error", "interrupted", "killed"]


class EngineBroken(Exception):
    """Failure of a container to start, or its end by itself. The message is for operators."""


class FileRefused(Exception):
    """Failure to write or read a file of a container: no room, too long, or not there."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Limits of one container; the bounds are for those that a gateway asks of a worker server."""

    memory_bytes: Annotated[int, Field(gt=0)] = 1024**3
    data_bytes: Annotated[int, Field(gt=0)] = 512 * 1024**2
    processes: Annotated[int, Field(gt=0)] = 64
    open_files: Annotated[int, Field(gt=0)] = 256
    cpu_s: Annotated[int, Field(gt=0)] = 600
    start_timeout_s: Annotated[float, Field(gt=0, le=TIMEOUT_MAX_S)] = 30.0

    def resources(self) -> Mapping[str, int]:
        # By the kernel's names.
        return {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_FSIZE": self.data_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True, slots=True)
class ContainerCapabilities:
    """Capabilities of the containers of an engine.

    `language` is the interpreter, with its version. `packages` can be imported. Without `has_files`
    nothing is kept in `/mnt/data`. `is_movable`: another process can go on with a container by its
    handle. `is_whole`: it is CPython on a machine, and lacks only packages; else `missing` tells
    the model what else is missing.
    """

    language: str
    packages: tuple[str, ...] = ()
    has_files: bool = True
    is_movable: bool = False
    is_whole: bool = True
    missing: str = ""


class RunResult(BaseModel):
    """Result of a run. It comes from a sandbox, so it is not trusted: it is validated like a
    request.

    `output` is what the code printed, in order, without the `dropped` bytes that were too many.
    `images` and `files` are paths: of images to show, and of files that are new or have changed.
    `gone` are the paths of the files that the run removed.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    ran: int = 0
    status: RunStatus
    output: str = ""
    dropped: int = 0
    images: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class Container(Protocol):
    """Interpreter that does one thing at a time. Its methods raise `EngineBroken` once it is gone,
    except `leave` and `close`.
    """

    @property
    def handle(self) -> bytes | None:
        """Return what another process can attach by; None where none can."""
        ...

    @property
    def is_alive(self) -> bool:
        """Return True if the container can still be used, as far as is known."""
        ...

    async def run(self, code: str, *, timeout_s: float, key: str = "") -> RunResult:
        """Run code. When its time is up it is interrupted, and then killed with its container.

        Cancellation does the same. `key` names the run for `result_of`.
        """
        ...

    async def result_of(self, key: str, *, timeout_s: float) -> RunResult | None:
        """Return the result of the run with this key, after it has ended; None: not known here."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Write a file below `/mnt/data`, and make its folders. Raises `FileRefused`."""
        ...

    async def get(self, path: str, *, bytes_max: int) -> bytes:
        """Read a file. Raises `FileRefused`, also for one longer than `bytes_max`."""
        ...

    async def remove(self, path: str) -> None:
        """Delete a file, if it exists."""
        ...

    async def leave(self) -> None:
        """Detach, so that another process can attach. Raises nothing.

        A container that no other process can use is ended.
        """
        await self.close()

    async def close(self) -> None:
        """Kill the container with all its processes. Raises nothing."""
        ...


class ContainerEngine(Protocol):
    """Engine that opens containers of one kind."""

    name: EngineName

    async def describe(self) -> ContainerCapabilities:
        """Return what its containers can do. Raises `EngineBroken` where it opens none."""
        ...

    async def open(self, limits: ContainerLimits) -> Container:
        """Open a container that is ready. Raises `EngineBroken`."""
        ...

    async def attach(self, handle: bytes) -> Container | None:  # noqa: ARG002
        """Attach to the container of a handle; None if it has ended. Raises `EngineBroken`.

        Where containers end with the process that started them, there is none.
        """
        return None

    async def close(self) -> None:
        """Close the engine; no other method may be called then."""
        ...


def data_path(name: str) -> str:
    """Return the path below `/mnt/data` that a name stands for, from whatever source.

    Raises `ValueError` for a path that leads elsewhere, is too long, or has forbidden
    characters.
    """
    if not name or len(name) > PATH_CHARS_MAX or any(map(_is_odd, name)):
        raise ValueError("expected a file name of printable characters")
    path = normpath(name if name.startswith("/") else f"{DATA}/{name}")
    if not path.startswith(f"{DATA}/"):
        raise ValueError(f"expected a path below {DATA}")
    if any(len(part.encode()) > NAME_BYTES_MAX for part in path.split("/")):
        raise ValueError(f"expected names of at most {NAME_BYTES_MAX} bytes")
    return path


def _is_odd(character: str) -> bool:
    return not character.isprintable() or character == "\\"
