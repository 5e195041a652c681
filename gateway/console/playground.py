"""The Playground's way to the API.

A request goes through the application that clients reach, with the same checks, limits and usage.
Its key stays in this process: no page and no cookie has it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from typing_extensions import override

from gateway import ids
from gateway.admin.keys import AccountKeyCreate
from gateway.api.client_connection import EXTENSION, connection_of
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.telemetry import logs
from gateway.tools.python.container_pool import IMAGE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from uuid import UUID

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.admin.keys import Keys
    from gateway.admin.transactions import AdminCaller
    from gateway.api.client_connection import ClientConnection, OnDisconnect
    from gateway.console.answer_lines import AnswerLines
    from gateway.console.login_sessions import Session
    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.tenancy.policy import TenantPolicy

KEY_S: Final = 600
KEY_TERMS: Final = AccountKeyCreate(
    name="Playground",
    scopes=("responses.write", "containers.read"),
    expires_in_seconds=KEY_S,
)
CREATE: Final = "/v1/responses"
LINES_HEAD: Final = ((b"content-type", b"application/x-ndjson"), (b"x-accel-buffering", b"no"))
DOWNLOAD: Final = "application/octet-stream"
_FILE_HEADERS: Final = frozenset({b"content-length", b"content-disposition"})


@dataclass(frozen=True, slots=True)
class PlaygroundKey:
    """Session's key for one project; `ends_at` is a Unix time."""

    caller: AdminCaller
    project_id: str
    id: str
    secret: str = field(repr=False)
    ends_at: float


class PlaygroundKeys:
    """Keys of this process, one a session at most."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._by_session: dict[UUID, PlaygroundKey] = {}
        self._changes = asyncio.Lock()

    def find(self, session: Session, project_id: str | None = None) -> PlaygroundKey | None:
        """Return the session's key if it works, and is of this project (None: of any)."""
        key = self._by_session.get(session.id)
        if key is None or key.ends_at <= time.time() or project_id not in {None, key.project_id}:
            return None
        return key

    async def get(self, session: Session, caller: AdminCaller, project_id: str) -> PlaygroundKey:
        """Return the session's key of a project; make it if none works."""
        async with self._changes:
            if (key := self.find(session, project_id)) is not None:
                return key
            now = time.time()
            lapsed = [one for one, key in self._by_session.items() if key.ends_at <= now]
            for ended in {*lapsed, session.id}:
                await self._end(ended)
            made = await self._keys.create_unowned(caller, project_id, KEY_TERMS)
            expires_at, created_at = made.key.terms.expires_at, made.key.created_at
            assert made.secret is not None, "it was just made"
            assert expires_at is not None, "its terms have an end"
            # By this process's clock, and from before it was made: the database ends it later.
            ends_at = now + (expires_at - created_at).total_seconds()
            key = PlaygroundKey(
                caller, project_id, ids.api_key_id(made.key.id), made.secret, ends_at
            )
            self._by_session[session.id] = key
            return key

    async def end(self, session: Session) -> None:
        async with self._changes:
            await self._end(session.id)

    async def _end(self, session_id: UUID) -> None:
        key = self._by_session.pop(session_id, None)
        if key is not None:
            # The project, the tenant or the key itself may be gone.
            with suppress(ResourceNotFound, InvalidRequest):
                await self._keys.end(key.caller, key.project_id, key.id)


@dataclass(frozen=True, slots=True)
class Playground:
    app: ASGIApp
    keys: PlaygroundKeys
    served: Callable[[TenantPolicy], Collection[HostedFamily]]


class _Connection:
    """Connection to which the API writes nothing by itself: its answer is rewritten."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def write_part(self, _part: bytes, /) -> bool:
        return False

    def watch(self, on_disconnect: OnDisconnect | None, /) -> None:
        self._connection.watch(on_disconnect)

    def trust(self) -> None:
        self._connection.trust()


class _ApiAnswer(Response):
    """The API's answer, rewritten; a browser that leaves ends it."""

    def __init__(
        self, app: ASGIApp, key: PlaygroundKey, *, path: str, body: bytes | None = None
    ) -> None:
        # Without a body it is a GET.
        self._app = app
        self._key = key
        self._path = path
        self._body = body

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rest: list[Message] = [{"type": "http.request", "body": self._body or b""}]

        async def receive_inner() -> Message:
            return rest.pop() if rest else await receive()

        try:
            await self._app(self._scope(scope), receive_inner, self._rewriting(send))
        finally:
            # The API has bound those of its request.
            logs.bind_anew(request_id=scope["record"].request_id)

    def _rewriting(self, send: Send) -> Send:
        raise NotImplementedError

    def _scope(self, scope: Scope) -> Scope:
        body = self._body
        headers = [(b"authorization", f"Bearer {self._key.secret}".encode())]
        if body is not None:
            headers.append((b"content-type", b"application/json"))
            headers.append((b"content-length", b"%d" % len(body)))
        headers += [one for one in scope["headers"] if one[0] == b"x-forwarded-for"]
        kept = ("type", "asgi", "http_version", "scheme", "server", "client")
        inner: Scope = {
            **{name: scope.get(name) for name in kept},
            "method": "GET" if body is None else "POST",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
        }
        if (connection := connection_of(scope)) is not None:
            inner["extensions"] = {EXTENSION: {"connection": _Connection(connection)}}
        return inner


class StreamedAnswer(_ApiAnswer):
    def __init__(self, app: ASGIApp, key: PlaygroundKey, body: bytes, lines: AnswerLines) -> None:
        super().__init__(app, key, path=CREATE, body=body)
        self._lines = lines

    @override
    def _rewriting(self, send: Send) -> Send:
        lines = self._lines

        async def rewrite(message: Message) -> None:
            if message["type"] == "http.response.start":
                lines.begin(message["status"], dict(message["headers"]))
                await send({"type": "http.response.start", "status": 200, "headers": LINES_HEAD})
                return
            more = message.get("more_body", False)
            part = lines.feed(message.get("body", b""), is_last=not more)
            await send({"type": "http.response.body", "body": part, "more_body": more})

        return rewrite


class Cancellation(_ApiAnswer):
    """Cancellation, which answers nothing: the response may have ended with its client."""

    def __init__(self, app: ASGIApp, key: PlaygroundKey, response_id: str) -> None:
        super().__init__(app, key, path=f"{CREATE}/{response_id}/cancel", body=b"")

    @override
    def _rewriting(self, send: Send) -> Send:
        async def rewrite(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send({"type": "http.response.start", "status": 204, "headers": []})
            elif not message.get("more_body", False):
                await send({"type": "http.response.body"})

        return rewrite


class FileAnswer(_ApiAnswer):
    def __init__(self, app: ASGIApp, key: PlaygroundKey, container_id: str, file_id: str) -> None:
        path = f"/v1/containers/{container_id}/files/{file_id}/content"
        super().__init__(app, key, path=path)

    @override
    def _rewriting(self, send: Send) -> Send:
        # The type follows from the first bytes, before which there is no head.
        heads: list[Message] = []

        async def rewrite(message: Message) -> None:
            if message["type"] == "http.response.start":
                heads.append(message)
                return
            if heads:
                await send(_typed(heads.pop(), message.get("body", b"")))
            await send(message)

        return rewrite


def _typed(head: Message, begins: bytes) -> Message:
    # Browsers show an image only by its own type; what is not one is a download.
    kinds = (kind for magic, kind in IMAGE_KINDS.items() if begins.startswith(magic))
    kept = [one for one in head["headers"] if one[0] in _FILE_HEADERS]
    return {**head, "headers": [*kept, (b"content-type", next(kinds, DOWNLOAD).encode())]}
