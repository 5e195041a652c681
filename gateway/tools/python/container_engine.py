"""Interface of the engines that run Python. Containers are untrusted: all that they return is
checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from posixpath import normpath
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Mapping


DATA: Final = "/mnt/data"
PATH_CHARS_MAX: Final = 512
NAME_BYTES_MAX: Final = 255
"""Linux's bound on one part of a path."""
TIMEOUT_MAX_S: Final = 120.0
INTERRUPT_GRACE_S: Final = 2.0
"""Until interrupted code is killed with its container."""

EngineName = Literal["linux", "monty", "remote"]
RunStatus = Literal["ok", "error", "interrupted", "killed"]


class EngineBroken(Exception):
    """Failure of a container to start, or its end. The message is for operators."""


class FileRefused(Exception):
    """File that cannot be written or read."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Limits of one container, bounded for a worker server."""

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
    """Capabilities of an engine's containers. `is_movable`: another process can go on with one by
    its handle. `is_whole`: it is CPython on a machine; otherwise `missing` says what it lacks, for
    the model.
    """

    language: str
    packages: tuple[str, ...] = ()
    is_movable: bool = False
    is_whole: bool = True
    missing: str = ""


class RunResult(BaseModel):
    """Result of a run, validated like a request, for it comes from a sandbox.

    `dropped` bytes of the output were too many. `files` are new or have changed, `gone` were
    removed.
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
    """Interpreter that does one thing at a time. Methods raise `EngineBroken` once it is gone,
    except `leave` and `close`.
    """

    @property
    def handle(self) -> bytes | None:
        """Return what another process can attach by."""
        ...

    @property
    def is_alive(self) -> bool: ...

    async def run(self, code: str, *, timeout_s: float, key: str = "") -> RunResult:
        """Run code; interrupt, and then kill it when its time is up, or at cancellation.

        `key` names the run for `result_of`.
        """
        ...

    async def result_of(self, key: str, *, timeout_s: float) -> RunResult | None:
        """Return the result of a run after it has ended."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Write a file, and make its folders. Raises `FileRefused`."""
        ...

    async def get(self, path: str, *, bytes_max: int) -> bytes:
        """Read a file. Raises `FileRefused`."""
        ...

    async def remove(self, path: str) -> None:
        """Delete a file, if it exists."""
        ...

    async def leave(self) -> None:
        """Detach; end a container that no other process can use. Raises nothing."""
        await self.close()

    async def close(self) -> None:
        """Kill all its processes. Raises nothing."""
        ...


class ContainerEngine(Protocol):
    name: EngineName

    async def describe(self) -> ContainerCapabilities:
        """Return what containers can do. Raises `EngineBroken`."""
        ...

    async def open(self, limits: ContainerLimits) -> Container:
        """Open a container that is ready. Raises `EngineBroken`."""
        ...

    async def attach(self, handle: bytes) -> Container | None:  # noqa: ARG002
        """Return None for a container that has ended. Raises `EngineBroken`."""
        return None

    async def close(self) -> None: ...


def data_path(name: str) -> str:
    """Return the path below `/mnt/data` of an untrusted name. Raises `ValueError`."""
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
