"""Interface of the modules of `gateway.console.pages`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from gateway.admin.transactions import AdminCaller
from gateway.audit import Author
from gateway.errors import InvalidRequest
from gateway.settings.http_urls import listener_url
from gateway.tenancy.permissions import OPERATOR_ROLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.datastructures import QueryParams
    from starlette.responses import Response

    from gateway.admin.resources import AdminServices, OperatorServices
    from gateway.admin.transactions import Ownership
    from gateway.api.client_connection import ClientConnection
    from gateway.console.login_sessions import Session, Sessions, Visitor
    from gateway.console.playground import Playground
    from gateway.tenancy import TenantId
    from gateway.tenancy.permissions import OperatorPermission


@dataclass(frozen=True, slots=True)
class Services:
    """Services of pages.

    `ownership`: whether tenants and backends can be changed here. `api_port` is where clients send
    requests.
    """

    operator: OperatorServices
    tenant: AdminServices
    sessions: Sessions
    ownership: Ownership
    api_port: int
    models: Callable[[], Sequence[str]]
    is_ending: Callable[[], bool]
    playground: Playground


@dataclass(frozen=True, slots=True)
class Call:
    """Request of an operator whose role has the permission for it.

    `origin` is what the browser has in its address bar. `render` takes template, block and view.
    """

    session: Session
    services: Services
    visitor: Visitor
    query: QueryParams
    path: Mapping[str, str]
    origin: str
    render: Callable[[str, str, object], str]
    form: Mapping[str, str] = field(default_factory=dict)
    connection: ClientConnection | None = None

    @property
    def author(self) -> Author:
        return Author(self.session.actor, self.visitor.address, self.visitor.request_id)

    def caller(self, tenant_id: TenantId) -> AdminCaller:
        return AdminCaller(tenant_id, self.author)

    @property
    def api_url(self) -> str:
        """Return the address for clients.

        A proxy that ends TLS is taken to have console and API behind one name.
        """
        parts = urlsplit(self.origin)
        if parts.scheme == "https":
            return f"{self.origin}/v1"
        return f"{listener_url(parts.hostname or '', self.services.api_port)}/v1"

    @property
    def default_model(self) -> str:
        return next(iter(self.services.models()), "gpt-oss-20b")

    def may(self, permission: OperatorPermission) -> bool:
        return permission in OPERATOR_ROLES[self.session.role]

    def confirmed(self, parameter: str) -> str:
        """Return a parameter of the path. An act that cannot be undone takes it twice, typed."""
        if self.form.get("confirmed") != self.path[parameter]:
            raise InvalidRequest(
                f"What was typed is not '{self.path[parameter]}', so nothing was changed.",
                param="confirmed",
            )
        return self.path[parameter]


class Rendered(NamedTuple):
    """Page as an answer, such as one with a secret that is shown once."""

    template: str
    title: str
    view: object


class Download(NamedTuple):
    name: str
    media_type: str
    content: str


Answer: TypeAlias = "str | Rendered | Response"
"""A path below /console to go to, a page, or another response."""


@dataclass(frozen=True, slots=True)
class Act:
    """POST to `path`; `permission` None: for all operators."""

    path: str
    permission: OperatorPermission | None
    run: Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Page:
    """Page at `path` below /console.

    `view` returns what `template` shows, the path of another page, a `Download`, or a response;
    instead `live` reads what is the same to all who look: the block `live` of it is streamed.
    `permission` None: a session is enough. `fragments` are blocks that a script may fetch alone.
    Without an `icon` it is not in the navigation; `shortcut` follows `g`.
    """

    path: str
    permission: OperatorPermission | None
    title: str = ""
    template: str = ""
    view: Callable[[Call], Awaitable[object]] | None = None
    acts: tuple[Act, ...] = ()
    fragments: frozenset[str] = frozenset()
    icon: str = ""
    shortcut: str = ""
    live: Callable[[Services], Awaitable[object]] | None = None

    async def read(self, call: Call) -> object:
        if self.view is not None:
            return await self.view(call)
        assert self.live is not None, "a page has one of them"
        return await self.live(call.services)
