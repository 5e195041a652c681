"""Containers that are kernels of a Jupyter Kernel Gateway: one kernel for each of them.

Code is run as cells. Files go in and out, and what came of a run is found again, by a module of
ours in the kernel (`program.py`). A kernel is known by its id, which is its handle: whoever has it
goes on with the kernel, so a run outlives the gateway that began it; what it printed before does
not. How kernels are walled in is the server's business: see `ALWAYS_DENIED` in `attacks.py`.

Source: https://jupyter-kernel-gateway.readthedocs.io/en/latest/websocket-mode.html
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import httpx2
import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import override

from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.websocket import WEBSOCKET_ERRORS, open_websocket
from gateway.tools.python.engine import (
    DATA,
    INTERRUPT_GRACE_S,
    Container,
    ContainerCapabilities,
    ContainerEngine,
    ContainerLimits,
    EngineBroken,
    EngineName,
    FileRefused,
    Ran,
    RunStatus,
)
from gateway.tools.python.jupyter.channel import KernelChannel
from gateway.tools.python.pieces import get_file, put_file
from gateway.tools.python.worker import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressClient
    from gateway.tools.egress.websocket import WebSocketLimits
    from gateway.tools.python.jupyter.channel import Cell

T = TypeVar("T", bound=BaseModel)

PROGRAM: Final = Path(__file__).with_name("program.py")
OWN: Final = "{id}"
"""What stands in the folder of a kernel for a name that no other kernel has."""
DISPLAY: Final = f"{DATA}/.display"
"""Where images seem to be: they come by another way than files."""
PIECE_BYTES: Final = 1024 * 1024
"""Of a file in one message."""
ANSWER_TIMEOUT_S: Final = 20.0
"""For all that is no run."""
BUSY_TIMEOUT_S: Final = 5.0
"""For a sign of life of a kernel that may run code, or may just have been started."""
CLOSE_TRIES: Final = 40
CLOSE_TIMEOUT_S: Final = 10.0
"""For the end of a kernel, which is fast unless the server is starting it again."""
RESULTS_MAX: Final = 8
RETRIES: Final = 3
"""Of a connection that broke off."""
RETRY_PAUSE_S: Final = 0.2
ADDRESSES: Final = 8 * 1024**3
"""That a kernel reserves without using them, in bytes."""
TAKEN_OVER: Final = (
    "(Another server began this run; what the code printed until then is not known.)\n"
)
CUT_OFF: Final = "(A part of what the code printed is lost.)\n"
_ID: Final = re.compile(r"[\w-]{1,128}")
_ERRORS: Final = (httpx2.HTTPError, httpx2.StreamError, EgressRefused)
_UNREACHABLE: Final = "the Jupyter server cannot be reached"


@dataclass(frozen=True, slots=True)
class JupyterServer:
    """Where kernels are. `url` is that of the server, with its base path; `client` has it, too,
    and shows the token. `kernel` None: the kind that the server starts when it is not told.
    `folder` is where code finds its files; `{id}` in it is a name of each kernel's own. `accepted`
    are the attacks that the operator answers for.
    """

    client: EgressClient
    url: str
    headers: Mapping[str, str]
    policy: NetworkPolicy
    sockets: WebSocketLimits
    kernel: str | None = None
    folder: str = DATA
    accepted: frozenset[str] = frozenset()


class Begun(BaseModel):
    """What a kernel says of itself when it begins."""

    model_config = ConfigDict(extra="ignore")

    version: str = ""
    packages: tuple[str, ...] = ()


class KernelOutcome(BaseModel):
    """What a kernel says of a run that is over."""

    model_config = ConfigDict(extra="ignore")

    status: RunStatus
    dropped: int = 0
    files: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Handle:
    """What a kernel is found by: its id, and the folder of its files."""

    kernel: str
    folder: str

    def packed(self) -> bytes:
        """The handle as bytes, as the row of its container keeps it."""
        return orjson.dumps([self.kernel, self.folder])

    @classmethod
    def read(cls, packed: bytes) -> Handle | None:
        """What `packed` wrote; None: something else did."""
        try:
            kernel, folder = TypeAdapter(tuple[str, str]).validate_json(packed)
        except ValidationError:
            return None
        return cls(kernel, folder) if _ID.fullmatch(kernel) else None


@dataclass(slots=True)
class _Runs:
    """The runs of this process by key: results of the last ones, and the one that is under way."""

    results: dict[str, Ran] = field(default_factory=dict)
    running: dict[str, asyncio.Event] = field(default_factory=dict)

    def keep(self, key: str, ran: Ran) -> None:
        self.results[key] = ran
        for old in list(self.results)[:-RESULTS_MAX]:
            del self.results[old]


class JupyterContainer(Container):
    """One kernel. One thing at a time is asked of it."""

    def __init__(self, server: JupyterServer, known: Handle) -> None:
        self._server = server
        self._known = known
        self._handle = known.packed()
        self._place = f"api/kernels/{quote(known.kernel, safe='')}"
        self._session = secrets.token_hex(16)
        self._channel: KernelChannel | None = None
        self._turn = asyncio.Lock()
        self._runs = _Runs()
        self._images: dict[str, bytes] = {}
        self._is_gone = False
        self.begun = Begun()

    @property
    @override
    def handle(self) -> bytes:
        return self._handle

    @property
    @override
    def is_alive(self) -> bool:
        return not self._is_gone and not (self._channel is not None and self._channel.has_died)

    async def begin(self, limits: ContainerLimits) -> None:
        """Bring our module into a new kernel. Raises `EngineBroken`, and has ended it then."""
        folder = self._known.folder
        given = {
            "folder": folder,
            "is_own": folder != DATA,
            "limits": _resources(limits),
            "packages": PACKAGES,
        }
        source = repr(PROGRAM.read_text("utf-8"))
        code = (
            "import sys, types; _gateway = sys.modules['_gateway'] = types.ModuleType('_gateway'); "
            f"exec(compile({source}, '_gateway', 'exec'), vars(_gateway)); "
            "_gateway.shell_of_kernel = get_ipython; del _gateway, sys, types"
        )
        try:
            async with asyncio.timeout(limits.start_timeout_s):
                cell = await (await self._connect()).execute(code, expression="0")
                await cell.ended.wait()
                told = await self._ask("begin", given)
            self.begun = _check_begun(told, folder)
        except (TimeoutError, ValidationError, EngineBroken) as error:
            await self.close()
            raise EngineBroken(
                f"a kernel did not begin: {str(error) or 'it took too long'}"
            ) from error
        except asyncio.CancelledError:
            await self.close()
            raise

    @override
    async def run(self, code: str, *, timeout_s: float, key: str = "") -> Ran:
        """The results of the last runs that had a key are kept."""
        key = key or secrets.token_hex(8)
        async with self._turn:
            if (known := self._runs.results.get(key)) is not None:
                return known
            self._runs.running[key] = ended = asyncio.Event()
            try:
                ran = await self._run(code, timeout_s, key)
            except EngineBroken:
                self._is_gone = True
                raise
            else:
                self._runs.keep(key, ran)
                return ran
            finally:
                del self._runs.running[key]
                ended.set()

    async def _run(self, code: str, timeout_s: float, key: str) -> Ran:
        begun = await self._ask("before", {"key": key, "token": secrets.token_hex(8)})
        if not begun.get("begun"):
            found = await self._found_again(key, ANSWER_TIMEOUT_S)
            if found is None:
                raise EngineBroken("the result of a run is lost")
            return found
        self._images = {}
        channel = await self._connect()
        cell = await channel.execute(self._inwards(code), message_id=_message_id(key))
        try:
            is_late = not await self._is_over(key, cell, timeout_s)
            if is_late:
                await self._interrupt()
                if not await self._is_over(key, cell, INTERRUPT_GRACE_S):
                    await self.close()
                    return Ran(status="killed", output=self._outwards(cell.output))
            told = await self._ask("after", {"key": key})
        except asyncio.CancelledError:
            # The code goes on for a moment at most: names are kept where it takes the interrupt.
            await self._abandon(cell)
            raise
        note = CUT_OFF if cell.status is None else ""
        return self._result_of(told, cell, is_late=is_late, note=note)

    async def _is_over(self, key: str, cell: Cell, timeout_s: float) -> bool:
        """Whether a run ends in time. Where the connection broke off the kernel is asked, which
        answers when it has done what it was asked for before. Raises `EngineBroken`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if not await cell.ended.within(timeout_s):
            return False
        if cell.status is not None:
            return True
        left_s = deadline - loop.time()
        return await self._ask_within("after", {"key": key}, left_s) is not None

    def _result_of(self, told: Mapping[str, Any], cell: Cell, *, is_late: bool, note: str) -> Ran:
        try:
            outcome = KernelOutcome.model_validate(told)
        except ValidationError as error:
            raise EngineBroken("the result of a run is lost") from error
        status = outcome.status
        if status == "interrupted" or cell.was_interrupted:
            # Where nobody did that but the code itself, it is an error as others are.
            status = "interrupted" if is_late else "error"
        names = [f"{DISPLAY}/{number}" for number, _ in enumerate(cell.images, 1)]
        self._images = dict(zip(names, cell.images, strict=True))
        return Ran(
            status=status,
            output=note + self._outwards(cell.output),
            dropped=cell.dropped + max(0, outcome.dropped),
            images=tuple(names),
            files=tuple(f"{DATA}/{path}" for path in outcome.files),
            gone=tuple(f"{DATA}/{path}" for path in outcome.gone),
        )

    async def _abandon(self, cell: Cell) -> None:
        """Interrupt a run that nobody waits for, and end the kernel where that is of no use."""
        try:
            await self._interrupt()
            is_over = await cell.ended.within(INTERRUPT_GRACE_S) and cell.status is not None
        except (EngineBroken, asyncio.CancelledError):
            is_over = False
        if not is_over:
            await self.close()

    @override
    async def result_of(self, key: str, *, timeout_s: float) -> Ran | None:
        """A run of another process is waited for in the kernel."""
        if (running := self._runs.running.get(key)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await running.wait()
        if key in self._runs.results or running is not None:
            return self._runs.results.get(key)
        async with self._turn:
            return await self._found_again(key, timeout_s)

    async def _found_again(self, key: str, timeout_s: float) -> Ran | None:
        """What came of a run that this process did not see begin; None: nobody knows."""
        channel = await self._connect()
        cell = channel.expect(_message_id(key))
        try:
            told = await self._ask_within("after", {"key": key}, timeout_s)
        finally:
            channel.forget(cell)
        return self._result_of(told, cell, is_late=False, note=TAKEN_OVER) if told else None

    @override
    async def put(self, path: str, content: bytes) -> None:
        async with self._turn:
            await put_file(self._file, path, content, piece_bytes=PIECE_BYTES)

    @override
    async def get(self, path: str, *, bytes_max: int) -> bytes:
        if (image := self._images.get(path)) is not None:
            if len(image) > bytes_max:
                raise FileRefused(f"{path} is longer than {bytes_max} bytes")
            return image
        async with self._turn:
            return await get_file(self._file, path, piece_bytes=PIECE_BYTES, bytes_max=bytes_max)

    @override
    async def remove(self, path: str) -> None:
        async with self._turn:
            await self._file("remove", path)

    @override
    async def leave(self) -> None:
        """The server keeps the kernel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    @override
    async def close(self) -> None:
        """A server that cannot be reached ends it when it is idle."""
        self._is_gone = True
        await self.leave()
        with suppress(*_ERRORS, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                # A kernel that is being started again cannot be ended, and is there a moment later.
                for _ in range(CLOSE_TRIES):
                    answer = await self._server.client.request("DELETE", self._place)
                    if answer.status_code < 500:
                        return
                    await asyncio.sleep(RETRY_PAUSE_S)

    async def check(self) -> bool:
        """Whether it lives, and is the process that began. Raises `EngineBroken`."""
        try:
            answer = await self._server.client.request("GET", self._place)
        except _ERRORS as error:
            raise EngineBroken(f"{_UNREACHABLE}: {error}") from error
        if answer.status_code != 200:
            return False
        # One that runs code does not answer: whoever asks for the result of that finds out.
        is_busy = _parse(_Kernel, answer).execution_state == "busy"
        patience_s = BUSY_TIMEOUT_S if is_busy else ANSWER_TIMEOUT_S
        try:
            is_ours = await self._ask_within("after", {"key": ""}, patience_s) is not None
        except EngineBroken:  # the server started another process in its place
            is_ours = is_busy = False
        if not is_ours and not is_busy:
            await self.close()
        return is_ours or is_busy

    async def _file(self, order: str, path: str, /, **given: object) -> Mapping[str, Any]:
        told = await self._ask(order, {"path": path.removeprefix(f"{DATA}/"), **given})
        if "refused" in told:
            raise FileRefused(f"{path}: {str(told['refused'])[:200]}")
        return told

    async def _ask(self, order: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have our module in the kernel do something; the answer. Raises `EngineBroken`."""
        told = await self._ask_within(order, given, ANSWER_TIMEOUT_S)
        if told is None:
            raise EngineBroken("the kernel does not answer")
        return told

    async def _ask_within(
        self, order: str, given: Mapping[str, Any], timeout_s: float
    ) -> Mapping[str, Any] | None:
        """The same; None: there was no answer in time.

        An order that was cut off or interrupted is given once more: each can be done twice.
        """
        words = base64.b64encode(orjson.dumps(given)).decode()
        expression = f"__import__('_gateway').answer({order!r}, {words!r})"
        for _ in range(2):
            channel = await self._connect()
            cell = await channel.execute("", expression=expression)
            try:
                if not await cell.ended.within(timeout_s):
                    return None
            finally:
                channel.forget(cell)
            if cell.answer:
                return _decode_answer(cell.answer)
        raise EngineBroken("the kernel does not know of us any more")

    async def _interrupt(self) -> None:
        try:
            await self._server.client.request("POST", f"{self._place}/interrupt")
        except _ERRORS as error:
            raise EngineBroken(f"{_UNREACHABLE}: {error}") from error

    async def _connect(self) -> KernelChannel:
        """The connection to the kernel, opened anew where it broke off. Raises `EngineBroken`."""
        channel = self._channel
        if not self.is_alive:
            raise EngineBroken("the kernel is gone")
        if channel is not None and channel.is_open:
            return channel
        url = self._server.url.replace("http", "ws", 1).rstrip("/")
        place = f"{url}/{self._place}/channels?session_id={self._session}"
        server = self._server
        left = 0 if channel is None else RETRIES
        while True:
            try:
                socket = await open_websocket(place, server.headers, server.policy, server.sockets)
            except (*WEBSOCKET_ERRORS, EgressRefused) as error:
                if not left:
                    self._is_gone = True
                    raise EngineBroken(f"{_UNREACHABLE}: {error}") from error
                left -= 1
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                self._channel = KernelChannel(socket, self._session)
                return self._channel

    def _inwards(self, code: str) -> str:
        """Code as this kernel can run it: models know of no other folder than `/mnt/data`."""
        return code.replace(DATA, self._known.folder)

    def _outwards(self, text: str) -> str:
        return text.replace(self._known.folder, DATA)


class JupyterEngine(ContainerEngine):
    """Kernels of one server."""

    name: EngineName = "jupyter"

    def __init__(self, server: JupyterServer) -> None:
        self._server = server

    @override
    async def describe(self) -> ContainerCapabilities:
        """Two kernels must not find each other's files."""
        limits = ContainerLimits()
        one = await self.open(limits)
        try:
            mark = f"{DATA}/{secrets.token_hex(16)}"
            await one.put(mark, b"1")
            other = await self.open(limits)
            try:
                await other.get(mark, bytes_max=1)
            except FileRefused:
                pass
            else:
                raise EngineBroken(
                    f"its kernels share {self._server.folder}: give each of them a file system, or "
                    "set tools.python.jupyter_folder with {id} in it"
                )
            finally:
                await other.close()
        except FileRefused as error:
            raise EngineBroken(f"a kernel keeps no files: {error}") from error
        finally:
            await one.close()
        return ContainerCapabilities(
            f"CPython {one.begun.version}",
            one.begun.packages,
            is_movable=True,
            accepted=self._server.accepted,
        )

    @override
    async def open(self, limits: ContainerLimits) -> JupyterContainer:
        kind = {} if self._server.kernel is None else {"name": self._server.kernel}
        try:
            answer = await self._server.client.request(
                "POST", "api/kernels", content=orjson.dumps(kind), timeout=limits.start_timeout_s
            )
        except _ERRORS as error:
            raise EngineBroken(f"{_UNREACHABLE}: {error}") from error
        if answer.status_code >= 300:
            raise EngineBroken(
                f"the Jupyter server answered {answer.status_code}: {answer.text[:200]}"
            )
        kernel = _parse(_Kernel, answer).id
        if not _ID.fullmatch(kernel):
            raise EngineBroken("the Jupyter server gave no id")
        folder = self._server.folder.replace(OWN, secrets.token_hex(16))
        container = JupyterContainer(self._server, Handle(kernel, folder))
        await container.begin(limits)
        return container

    @override
    async def attach(self, handle: bytes) -> JupyterContainer | None:
        known = Handle.read(handle)
        if known is None:
            return None
        container = JupyterContainer(self._server, known)
        return container if await container.check() else None

    @override
    async def close(self) -> None:
        await self._server.client.aclose()


class _Kernel(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: str
    execution_state: str = ""


def _parse(kind: type[T], answer: httpx2.Response) -> T:
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        raise EngineBroken("the Jupyter server said something else") from error


def _decode_answer(quoted: str) -> Mapping[str, Any]:
    """What our module answered: letters in quotation marks, as Python writes a string."""
    try:
        told = orjson.loads(base64.b64decode(quoted.strip("'\""), validate=True))
    except (binascii.Error, ValueError) as error:
        raise EngineBroken("the kernel said something else than what it should") from error
    if not isinstance(told, dict):
        raise EngineBroken("the kernel said something else than what it should")
    return told


def _check_begun(told: Mapping[str, Any], folder: str) -> Begun:
    if "refused" in told:
        raise EngineBroken(f"it cannot use {folder}: {told['refused']}")
    return Begun.model_validate(told)


def _message_id(key: str) -> str:
    """By which messages tell of the run of a key, whoever hears them."""
    return f"run-{key}"


def _resources(limits: ContainerLimits) -> Mapping[str, int]:
    """Limits that a kernel sets for itself. Other kernels have the same user, so it does not count
    processes; a kernel reserves far more addresses than memory, so what counts is what it writes.
    """
    told = dict(limits.resources())
    told["RLIMIT_DATA"] = told["RLIMIT_AS"]
    told["RLIMIT_AS"] += ADDRESSES
    del told["RLIMIT_NPROC"]
    return told
