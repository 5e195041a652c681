"""One WebSocket to one kernel: requests go out, and what is told of each comes in.

    KernelChannel   the connection; it reads all the time, so that nothing piles up at the server
    Cell            what one request was answered with: texts, images, and how it ended

Source: https://jupyter-client.readthedocs.io/en/stable/messaging.html, sections "Execute" and
"Messages on the IOPub channel"; the frames are of jupyter_server's protocol without a name: one
JSON object a text frame, with its `channel`. A kernel runs code of models, and says what it likes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.concurrency import OnceEvent
from gateway.tools.egress.websocket import WEBSOCKET_ERRORS
from gateway.tools.python.engine import EngineBroken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.tools.egress.websocket import WebSocket

PROTOCOL: Final = "5.3"
OUTPUT_CHARS_MAX: Final = 1024 * 1024
"""Of one cell; what comes behind is counted and dropped."""
IMAGES_MAX: Final = 16
IMAGES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of all images of a cell."""
IMAGE_KINDS: Final = ("image/png", "image/jpeg")
_DEAD: Final = frozenset({"restarting", "autorestarting", "dead"})
"""States that servers tell of a kernel whose process has ended."""


class Cell:
    """One request to execute code, and what came of it."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.ended = OnceEvent()
        """Set when all is told, or nothing more will be; then `status` is None."""
        self.status: str | None = None
        self.was_interrupted = False
        self.answer = ""
        """What the expression of the request was, as Python writes it."""
        self.images: list[bytes] = []
        self.dropped = 0
        self._parts: list[str] = []
        self._room = OUTPUT_CHARS_MAX
        self._images_room = IMAGES_BYTES_MAX
        self._reply: str | None = None
        self._is_idle = False

    @property
    def output(self) -> str:
        """What was printed and shown, in order."""
        return "".join(self._parts)

    def hear(self, kind: str, content: Mapping[str, Any]) -> None:
        """Take a message that tells of this request."""
        match kind:
            case "stream":
                self._keep(content.get("text"))
            case "execute_result" | "display_data":
                self._show(content.get("data"))
            case "error":
                self._fail(content)
            case "status":
                self._is_idle |= content.get("execution_state") == "idle"
            case "execute_reply":
                self._reply = str(content.get("status"))
                self.answer = _answer(content.get("user_expressions"))
            case _:
                pass
        # The outputs of a cell come on another socket than its reply, and before it is idle.
        if self._reply is not None and self._is_idle:
            self.status = self._reply
            self.ended.set()

    def _keep(self, text: object) -> None:
        if isinstance(text, str):
            kept = text[: self._room]
            self._room -= len(kept)
            self.dropped += len(text) - len(kept)
            self._parts.append(kept)

    def _show(self, data: object) -> None:
        """Show a value as a notebook does: as an image, if it can be drawn, else as text."""
        if not isinstance(data, dict):
            return
        image = next((data[kind] for kind in IMAGE_KINDS if kind in data), None)
        if image is None:
            self._keep(f"{_text(data.get('text/plain'))}\n")
            return
        try:
            drawn = base64.b64decode(_text(image))
        except (binascii.Error, ValueError):
            return
        if len(self.images) < IMAGES_MAX and len(drawn) <= self._images_room:
            self.images.append(drawn)
            self._images_room -= len(drawn)

    def _fail(self, content: Mapping[str, Any]) -> None:
        if content.get("ename") == "KeyboardInterrupt":
            self.was_interrupted = True
            return
        trace = content.get("traceback")
        for line in trace if isinstance(trace, list) else ():
            self._keep(_text(line).rstrip("\n") + "\n")


class KernelChannel:
    """A connection that is open; `has_died` once the server says that the kernel died."""

    def __init__(self, socket: WebSocket, session: str) -> None:
        self._socket = socket
        self._session = session
        self._cells: dict[str, Cell] = {}
        self.has_died = False
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent over it."""
        return not self._reading.done()

    def expect(self, message_id: str) -> Cell:
        """What is told from now on of a request that another connection may have sent."""
        cell = self._cells[message_id] = Cell(message_id)
        if not self.is_open:
            self._give_up()
        return cell

    def forget(self, cell: Cell) -> None:
        """Nobody waits for this one any more."""
        self._cells.pop(cell.message_id, None)

    async def execute(
        self, code: str, *, expression: str = "", message_id: str | None = None
    ) -> Cell:
        """Send a request: code to be run, or silently, an expression to be told the value of.

        Raises `EngineBroken`.
        """
        cell = self.expect(message_id or secrets.token_hex(16))
        content = {
            "code": code,
            "silent": bool(expression),
            "store_history": not expression,
            "user_expressions": {"answer": expression} if expression else {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        try:
            await self._socket.send(orjson.dumps(self._message(cell, content)).decode())
        except WEBSOCKET_ERRORS as error:
            self.forget(cell)
            raise EngineBroken("the kernel cannot be reached") from error
        return cell

    async def close(self) -> None:
        """End the connection; the kernel lives on. Raises nothing."""
        self._reading.cancel()
        await asyncio.wait({self._reading})
        # A server that does not answer is not waited for.
        self._socket.transport.abort()

    def _message(self, cell: Cell, content: Mapping[str, Any]) -> Mapping[str, Any]:
        header = {
            "msg_id": cell.message_id,
            "msg_type": "execute_request",
            "username": "",
            "session": self._session,
            "date": datetime.now(UTC).isoformat(),
            "version": PROTOCOL,
        }
        return {
            "channel": "shell",
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "buffers": [],
        }

    async def _read(self) -> None:
        """Take all that comes, until the connection or the kernel ends."""
        try:
            while not self.has_died:
                frame = await self._socket.recv()
                if isinstance(frame, str):
                    self._hear(frame)
        except WEBSOCKET_ERRORS:
            pass
        finally:
            self._give_up()

    def _give_up(self) -> None:
        for cell in self._cells.values():
            cell.ended.set()
        self._cells.clear()

    def _hear(self, frame: str) -> None:
        try:
            message = orjson.loads(frame)
        except orjson.JSONDecodeError:
            return
        match message:
            case {"msg_type": str(kind), "content": dict(content), "parent_header": dict(parent)}:
                if kind == "status" and content.get("execution_state") in _DEAD and not parent:
                    self.has_died = True
                elif (cell := self._cells.get(_text(parent.get("msg_id")))) is not None:
                    cell.hear(kind, content)
                    if cell.ended.is_set():
                        self.forget(cell)
            case _:
                pass


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _answer(expressions: object) -> str:
    """The value of our expression; nothing where it failed."""
    match expressions:
        case {"answer": {"status": "ok", "data": {"text/plain": str(value)}}}:
            return value
        case _:
            return ""
