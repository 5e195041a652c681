"""Containers in WebAssembly: CPython for WASI, one process of this machine for each of them.

It needs no namespaces and no rights, so it is there where bubblewrap is not. The code sees neither
files, nor network, nor processes of the machine: WebAssembly gives it nothing to ask with. Its
memory is bounded by the process around it, which is not root either.

Source: https://github.com/eryx-org/eryx. Its package is an extra, and needs Python 3.12.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from gateway.tools.python.engine import (
    ContainerCapabilities,
    ContainerEngine,
    ContainerLimits,
    EngineBroken,
    EngineName,
)
from gateway.tools.python.worker_process import WorkerContainer

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKER: Final = Path(__file__).with_name("wasm_worker.py")
MISSING: Final = (
    "The interpreter is CPython in WebAssembly: it has the standard library, but no threads, no "
    "processes, no sockets, no ctypes and no asyncio.run(). Code that is out of time cannot be "
    "interrupted: all variables are gone then."
)
"""What a model is told, which expects a machine."""


class WasmEngine(ContainerEngine):
    """Starts a process for each container. A gateway that is root gives each of them a user id of
    its own, once its interpreter is loaded; others run them as the user that they are themselves.
    """

    name: EngineName = "wasm"

    def __init__(self, uids: range) -> None:
        """`uids` are what containers take turns in; needed by a gateway that is root only."""
        begin = secrets.randbelow(len(uids))
        turned: list[int] = [*uids[begin:], *uids[:begin]]
        self._uids = itertools.cycle(turned)
        self._count = len(turned)
        self._taken: set[int] = set()

    @override
    async def describe(self) -> ContainerCapabilities:
        container = await self.open(ContainerLimits())
        await container.close()
        return ContainerCapabilities(
            f"CPython {container.version} in WebAssembly", is_whole=False, missing=MISSING
        )

    @override
    async def open(self, limits: ContainerLimits) -> WorkerContainer:
        if find_spec("eryx") is None:
            raise EngineBroken("pyeryx is not installed (it needs Python 3.12)")
        uid = self._take_uid()
        words = [sys.executable, "-I", "-B", str(WORKER), json.dumps(_resources(limits)), str(uid)]
        try:
            container = await WorkerContainer.start(words, pass_fds=[])
        except BaseException as error:
            self._taken.discard(uid)
            if isinstance(error, OSError):
                raise EngineBroken(f"its process could not be started: {error}") from error
            raise
        container.on_closed.append(lambda: self._taken.discard(uid))
        await container.begin(timeout_s=limits.start_timeout_s)
        return container

    @override
    async def attach(self, handle: bytes) -> None:
        """Its processes end with the one that started them: nobody else has them."""

    @override
    async def close(self) -> None:
        """Nothing of it is open."""

    def _take_uid(self) -> int:
        """One that no living container has; 0: none is needed. Raises `EngineBroken`."""
        if os.getuid() != 0:
            return 0
        for uid in itertools.islice(self._uids, self._count):
            if uid not in self._taken and uid != 0:
                self._taken.add(uid)
                return uid
        raise EngineBroken("every user id for containers is in use")


def _resources(limits: ContainerLimits) -> Mapping[str, int]:
    """Limits of the process. WebAssembly reserves far more addresses than memory, so what counts is
    what is written to; threads of its runtime are the user's, who may have many others.
    """
    told = dict(limits.resources())
    told["RLIMIT_DATA"] = told.pop("RLIMIT_AS")
    del told["RLIMIT_NPROC"]
    return told
