"""Jupyter Kernel Gateways: one of our own, and the real one.

Ours speaks what was seen of the real one (3.0.1, with jupyter_server 2.21.1): the paths, the
statuses, the frames of a WebSocket, what is kept for a connection that broke off, and that a kernel
that dies is started again. Its kernels (`kernel.py`) are in sandboxes of their own, as an operator
should have them; those of the real one share theirs, so they share its files, too.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from tests.fakes.client_process import ENVIRONMENTS
from tests.fakes.processes import STEP_S
from tests.fakes.python_containers import SYSTEM_PYTHON
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request
    from starlette.websockets import WebSocket

TOKEN: Final = "token of the tests"
REAL: Final = ENVIRONMENTS / "jupyter"
START_TIMEOUT_S: Final = 60.0
_KERNEL: Final = Path(__file__).with_name("kernel.py")
_SANDBOX: Final = (
    *("bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--new-session", "--die-with-parent"),
    *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"),
    *("--tmpfs", "/tmp", "--tmpfs", "/mnt", "--dir", "/home/k", "--tmpfs", "/home/k"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin", "--clearenv"),
    *("--setenv", "HOME", "/home/k", "--setenv", "LANG", "C.UTF-8", "--chdir", "/home/k"),
)


@dataclass
class Running:
    """A kernel, and who listens to it by session. `kept` is for a session that is away."""

    id: str
    process: asyncio.subprocess.Process
    listeners: dict[str, WebSocket] = field(default_factory=dict)
    asked_by: dict[str, str] = field(default_factory=dict)
    away: str = ""
    kept: list[str] = field(default_factory=list)
    state: str = "starting"
    restarted: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Task[None] | None = None

    async def tell(self, channel: str, kind: str, content: dict[str, Any], parent: str) -> None:
        """Send a message to all that listen, or, if it is a reply, to who asked."""
        frame = json.dumps(
            {
                "channel": channel,
                "msg_type": kind,
                "header": {"msg_id": uuid4().hex, "msg_type": kind, "version": "5.3"},
                "parent_header": {"msg_id": parent} if parent else {},
                "metadata": {},
                "content": content,
                "buffers": [],
            }
        )
        if not self.listeners:
            self.kept.append(frame)
        asker = self.asked_by.get(parent, "")
        for session, socket in list(self.listeners.items()):
            if channel == "iopub" or session == asker:
                with suppress(RuntimeError, WebSocketDisconnect):
                    await socket.send_text(frame)


class KernelGateway:
    """The server. `requests` are the methods and paths that were asked for."""

    def __init__(self, kernels_max: int = 64) -> None:
        self.kernels: dict[str, Running] = {}
        self.requests: list[str] = []
        self._kernels_max = kernels_max
        one = "/api/kernels/{id}"
        self.app = Starlette(
            routes=[
                Route("/api/kernels", self._start, methods=["POST"]),
                Route(one, self._look, methods=["GET"]),
                Route(one, self._delete, methods=["DELETE"]),
                Route(f"{one}/interrupt", self._interrupt, methods=["POST"]),
                WebSocketRoute(f"{one}/channels", self._channels),
            ]
        )

    async def close(self) -> None:
        for kernel in list(self.kernels.values()):
            await self._end(kernel)

    def _refusal(self, request: Request) -> JSONResponse | None:
        self.requests.append(f"{request.method} {request.url.path}")
        if request.headers.get("authorization") != f"token {TOKEN}":
            return JSONResponse({"reason": "Unauthorized", "message": ""}, 401)
        if "id" in request.path_params and request.path_params["id"] not in self.kernels:
            message = f"Kernel does not exist: {request.path_params['id']}"
            return JSONResponse({"reason": "Not Found", "message": message}, 404)
        return None

    async def _start(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if len(self.kernels) >= self._kernels_max:
            return JSONResponse({"reason": "Forbidden", "message": "Resource Limit"}, 403)
        kernel = Running(str(uuid4()), await _process())
        self.kernels[kernel.id] = kernel
        kernel.reading = asyncio.create_task(self._read(kernel))
        return JSONResponse(_model(kernel), 201)

    async def _look(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse(_model(self._of(request)))

    async def _delete(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        await self._end(self._of(request))
        return Response(status_code=204)

    async def _interrupt(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        await _write(self._of(request), {"interrupt": True})
        return Response(status_code=204)

    async def _channels(self, socket: WebSocket) -> None:
        kernel = self.kernels.get(socket.path_params["id"])
        shown = socket.headers.get("authorization")
        if kernel is None or shown != f"token {TOKEN}":
            await socket.close()
            return
        session = socket.query_params["session_id"]
        await socket.accept()
        kernel.listeners[session] = socket
        kept, kernel.kept = kernel.kept, []
        for frame in kept if kernel.away == session else ():
            await socket.send_text(frame)
        try:
            while True:
                message = json.loads(await socket.receive_text())
                assert message["channel"] == "shell", message
                content, asked = message["content"], message["header"]
                assert asked["msg_type"] == "execute_request", message
                kernel.asked_by[asked["msg_id"]] = session
                await _write(kernel, {"id": asked["msg_id"], **content})
        except WebSocketDisconnect:
            if kernel.listeners.get(session) is socket:
                del kernel.listeners[session]
                kernel.away = session

    async def _read(self, kernel: Running) -> None:
        """Pass on what the kernel says; start another where it dies."""
        while True:
            assert kernel.process.stdout is not None
            async for line in kernel.process.stdout:
                said = json.loads(line)
                if said["kind"] == "status":
                    kernel.state = said["content"]["execution_state"]
                await kernel.tell(said["channel"], said["kind"], said["content"], said["parent"])
            await kernel.process.wait()
            if kernel.id not in self.kernels:
                return
            kernel.process = await _process()
            kernel.state = "starting"
            kernel.restarted.set()
            await kernel.tell("iopub", "status", {"execution_state": "restarting"}, "")

    async def _end(self, kernel: Running) -> None:
        self.kernels.pop(kernel.id, None)
        assert kernel.process.stdin is not None
        # Not killed: bubblewrap that has not begun would leave a process behind.
        kernel.process.stdin.close()
        await kernel.process.wait()
        if kernel.reading is not None:
            kernel.reading.cancel()
        for socket in list(kernel.listeners.values()):
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close()

    def _of(self, request: Request) -> Running:
        return self.kernels[request.path_params["id"]]


def _model(kernel: Running) -> dict[str, Any]:
    return {
        "id": kernel.id,
        "name": "python3",
        "last_activity": "2026-11-23T09:17:29.416669Z",
        "execution_state": kernel.state,
        "connections": len(kernel.listeners),
    }


async def _process() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *_SANDBOX, "--unshare-net", "--ro-bind", str(_KERNEL), "/kernel.py", "--remount-ro", "/",
        "--", str(SYSTEM_PYTHON), "-B", "-W", "ignore", "/kernel.py",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=64 << 20,
    )  # fmt: skip


async def _write(kernel: Running, request: dict[str, Any]) -> None:
    assert kernel.process.stdin is not None
    with suppress(ConnectionError):
        kernel.process.stdin.write(json.dumps(request).encode() + b"\n")
        await kernel.process.stdin.drain()


@asynccontextmanager
async def kernel_gateway(**options: Any) -> AsyncIterator[tuple[str, KernelGateway]]:
    """Ours, on a real socket: its URL, and itself."""
    server = KernelGateway(**options)
    async with serving(server.app) as url:
        try:
            yield url, server
        finally:
            await server.close()


def has_real() -> bool:
    """Whether `make test-e2e` has installed the real one, and it can be walled in."""
    return (REAL / ".python").exists() and shutil.which("bwrap") is not None


@contextmanager
def real_kernel_gateway(port: int) -> Iterator[str]:
    """The real one, all of it in one sandbox, as an operator may have it: its URL."""
    base = subprocess.check_output(
        [str(REAL / "bin/python"), "-c", "import sys; print(sys.base_prefix)"], text=True
    ).strip()
    binds = [word for path in (base, str(REAL)) for word in ("--ro-bind", path, path)]
    command = [
        *_SANDBOX, *(binds if base != "/usr" else binds[3:]), "--remount-ro", "/",
        "--setenv", "PATH", f"{REAL}/bin:/usr/bin", "--",
        f"{REAL}/bin/jupyter-kernelgateway", "--KernelGatewayApp.ip=127.0.0.1",
        f"--KernelGatewayApp.port={port}", "--KernelGatewayApp.port_retries=0",
        f"--KernelGatewayApp.auth_token={TOKEN}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), stderr=subprocess.STDOUT
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def until_ready(url: str) -> None:
    """Wait until it answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=START_TIMEOUT_S)
        try:
            connection.request("GET", "/api")
            connection.getresponse()
        except ConnectionError:
            time.sleep(STEP_S)
        else:
            return
        finally:
            connection.close()
    raise TimeoutError(f"no Jupyter Kernel Gateway at {url}")
