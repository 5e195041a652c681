"""The Playground: its form as the body of a request, and its way to the API.

A request goes through the application that clients reach, with the same checks, limits and usage.
Its key stays in this process: no page and no cookie has it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response
from typing_extensions import override

from gateway import ids
from gateway.admin.keys import AccountKeyCreate
from gateway.api.client_connection import EXTENSION, connection_of
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.telemetry import logs
from gateway.tools.python.container_pool import IMAGE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from uuid import UUID

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.admin.keys import Keys
    from gateway.admin.transactions import AdminCaller
    from gateway.api.client_connection import ClientConnection, OnDisconnect
    from gateway.console.answer_lines import AnswerLines
    from gateway.console.login_sessions import Session
    from gateway.protocol.admin_bodies import Json
    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.tenancy.policy import TenantPolicy

KEY_S: Final = 600
KEY_TERMS: Final = AccountKeyCreate(
    name="Playground", scopes=("responses.write", "containers.read"), expires_in_seconds=KEY_S
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


OUTPUT: Final = "output:"
"""Before a call's id: the name of the field with its output."""
APPROVAL: Final = "approval:"
"""Before an approval's id: the name of the field with the answer."""
HOSTED: Final[dict[HostedFamily, Json]] = {
    "web_search": {"type": "web_search"},
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
}
"""With a box in the form."""
SHOWN: Final[dict[HostedFamily, str]] = {
    "web_search": "web_search_call.action.sources",
    "code_interpreter": "code_interpreter_call.outputs",
}
"""Values of `include`."""
SCHEMA_NAME: Final = "answer"
DIGITS_MAX: Final = 15
"""All such numbers can be written as JSON."""
TEXTS: Final = ("model", "instructions", "service_tier")
"""Parameters as they stand."""


def input_of(form: Mapping[str, str]) -> list[Json]:
    items: list[Json] = [
        {"type": "function_call_output", "call_id": name.removeprefix(OUTPUT), "output": value}
        for name, value in form.items()
        if name.startswith(OUTPUT)
    ]
    items += [
        {
            "type": "mcp_approval_response",
            "approval_request_id": name.removeprefix(APPROVAL),
            "approve": value == "approve",
        }
        for name, value in form.items()
        if name.startswith(APPROVAL) and value in {"approve", "refuse"}
    ]
    if question := form.get("question", ""):
        items.append({"role": "user", "content": question})
    if not items:
        raise InvalidRequest("There is no question. Write one, and send it.", param="question")
    return items


def number(text: str, param: str, refusal: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise InvalidRequest(refusal, param=param)
    return int(text)


def body_of(form: Mapping[str, str], context: Mapping[str, Any], items: Sequence[Json]) -> Json:
    """Return the request; `context` has parameters to continue something with."""
    body: Json = {name: form[name] for name in TEXTS if form.get(name)}
    if effort := form.get("effort"):
        body["reasoning"] = {"effort": effort}
    if most := form.get("max_output_tokens"):
        body["max_output_tokens"] = number(most, "max_output_tokens", "'Max tokens' is no number.")
    if (schema := _json(form, "schema")) is not None:
        form_of_answer = {"type": "json_schema", "name": SCHEMA_NAME, "strict": True}
        body["text"] = {"format": {**form_of_answer, "schema": schema}}
    if tools := list(_tools(form)):
        body["tools"] = tools
    if include := [field for family, field in SHOWN.items() if form.get(family)]:
        body["include"] = include
    return {**body, **context, "input": list(items)}


def _tools(form: Mapping[str, str]) -> Iterator[Json]:
    yield from (tool for family, tool in HOSTED.items() if form.get(family))
    more = _json(form, "tools")
    if more is not None:
        yield from more if isinstance(more, list) else [more]


def _json(form: Mapping[str, str], name: str) -> Any:
    # None: the field is empty.
    if not (text := form.get(name, "")):
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"'{name}' is no JSON: {error}. Correct it, or leave it empty.", param=name
        ) from None
    if not isinstance(value, dict | list):
        raise InvalidRequest(f"'{name}' is no object. Begin it with '{{'.", param=name)
    return value
