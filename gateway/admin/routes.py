"""Routes of the admin planes: path, permission and endpoint; who calls them; pages of lists."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import ids
from gateway.admin.transactions import AdminCaller
from gateway.api.access.client_address import client_address
from gateway.api.query import boolean, list_body, page_query, without_index
from gateway.audit import Actor, Author
from gateway.errors import PermissionDenied, shown
from gateway.protocol.admin_bodies import Json, NoBody, deleted_body
from gateway.protocol.json_body import parse_object
from gateway.protocol.request_errors import invalid, unknown, unknown_place, validated
from gateway.tenancy.permissions import OPERATOR_PERMISSIONS, OPERATOR_ROLES, ROLES, role_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from starlette.datastructures import QueryParams
    from starlette.types import Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.protocol.base import WireModel
    from gateway.protocol.pages import Page, PageParams
    from gateway.tenancy import Network, Operator, Principal
    from gateway.tenancy.permissions import AnyPermission, OperatorRole, Role

    Endpoint = Callable[["AdminCall"], Awaitable[Json | Response]]

    Wire = TypeVar("Wire", bound=WireModel)
    T = TypeVar("T")

Plane = Literal["tenant", "operator"]
OPERATOR_BASE = "/admin/v1"


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """Route of an admin plane.

    `path` is below `/v1`, for operators below `/admin/v1`. `endpoint` returns the answer, or its
    JSON object. `refuses`: it only says why there is nothing, and is not in the OpenAPI document.
    `spans_slashes`: the last id of the path may contain slashes.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    permission: AnyPermission
    endpoint: Endpoint
    body: type[WireModel] | None = None
    query: Sequence[str] = ()
    refuses: bool = False
    spans_slashes: bool = False

    @property
    def plane(self) -> Plane:
        return "operator" if self.permission in OPERATOR_PERMISSIONS else "tenant"

    @property
    def url(self) -> str:
        return (OPERATOR_BASE if self.plane == "operator" else "/v1") + self.path


@dataclass(frozen=True, slots=True)
class AdminCall:
    """Request whose caller has the permission for its route."""

    request: Request
    bodies: BodyReader
    route: AdminRoute
    trusted_proxies: Sequence[Network] = ()

    @property
    def principal(self) -> Principal:
        principal: Principal = self.request.scope["principal"]
        return principal

    @property
    def caller(self) -> AdminCaller:
        return AdminCaller(self.principal.tenant_id, self.author, self.principal.key_id)

    @property
    def author(self) -> Author:
        scope = self.request.scope
        operator: Operator | None = scope.get("operator")
        if operator is None:
            actor = Actor("api_key", ids.api_key_id(self.principal.key_id), "user")
        else:
            actor = Actor("operator", str(operator.key_id), None, operator.name)
        address = client_address(scope, self.trusted_proxies)
        return Author(actor, None if address is None else str(address), scope["record"].request_id)

    @property
    def changer(self) -> AdminCaller | Author:
        return self.author if "operator" in self.request.scope else self.caller

    @property
    def path(self) -> Mapping[str, str]:
        return self.request.path_params

    async def body(self, model: type[Wire]) -> Wire:
        """Parse and check the JSON body.

        Unknown keys are refused: a restriction that somebody meant must not be ignored.
        """
        assert model is self.route.body, "the route says what it reads"
        request, bodies = self.request, self.bodies
        content = await bodies.read(request.scope, request.receive)
        document = parse_object(content or b"{}", bodies.input_limits)
        if (strange := _strange_key(model, document)) is not None:
            raise unknown(strange)
        return validated(model, document)


# The kinds of pages of OpenAI's admin API. The SDK goes on in each by `after`, but takes its value
# from another field: `last_id`, or the id of the last item (`list_body`), or `next`
# (`next_page`); a `whole_page` has no next. An SDK that misses its field ends the list silently, so
# each resource must use the one that openai-python has for it.
PAGE: Final = ("limit", "after")
ORDERED_PAGE: Final = (*PAGE, "order")


def page_params(query: QueryParams) -> PageParams:
    return page_query(query, order="asc")


def cut(items: Sequence[Json], params: PageParams) -> tuple[list[Json], bool]:
    """Return one page of a complete list (the oldest first), and True if there are more: behind it,
    or with `before` ahead of it.
    """
    listed = list(items)
    if params.order == "desc":
        listed.reverse()
    names = [one["id"] for one in listed]
    if params.cursor is not None and params.cursor not in names:
        raise unknown_place(params.cursor_name)
    if params.before is not None:
        end = names.index(params.before)
        begin = max(0, end - params.limit)
        return listed[begin:end], begin > 0
    begin = 0 if params.after is None else names.index(params.after) + 1
    end = begin + params.limit
    return listed[begin:end], end < len(listed)


def next_page(items: Sequence[Json], *, next_id: str | None) -> Json:
    """Return a `SyncNextCursorPage`."""
    return {"object": "list", "data": list(items), "has_more": next_id is not None, "next": next_id}


def whole_page(items: Sequence[Json]) -> Json:
    """Return a `SyncPage`."""
    return {"object": "list", "data": list(items)}


def read(
    path: str,
    permission: AnyPermission,
    use_case: Callable[..., Awaitable[T]],
    shown: Callable[[T], Json],
) -> AdminRoute:
    """Return a GET route of `use_case(tenant_id, *ids)`, on the plane of operators
    `use_case(*ids)`.
    """

    async def endpoint(call: AdminCall) -> Json:
        scope = () if call.route.plane == "operator" else (call.principal.tenant_id,)
        return shown(await use_case(*scope, *call.path.values()))

    return AdminRoute("GET", path, permission, endpoint)


def listed(  # noqa: PLR0913 - what a list is
    path: str,
    permission: AnyPermission,
    use_case: Callable[..., Awaitable[Page[T]]],
    shown: Callable[[T], Json],
    *,
    flags: Sequence[str] = (),
    filters: Sequence[str] = (),
    is_ordered: bool = False,
) -> AdminRoute:
    """Return a GET route of pages of `use_case(tenant_id, *ids, page_params, **options)`.

    `flags` are boolean query parameters, `filters` texts: None where the query lacks one.
    """

    async def endpoint(call: AdminCall) -> Json:
        query = call.request.query_params
        options: Json = {name: boolean(query, name) for name in flags}
        options |= {name: query.get(name) or None for name in filters}
        page = await use_case(
            call.principal.tenant_id, *call.path.values(), page_params(query), **options
        )
        return list_body(map(shown, page.rows), has_more=page.has_more)

    query = (*(ORDERED_PAGE if is_ordered else PAGE), *flags, *filters)
    return AdminRoute("GET", path, permission, endpoint, query=query)


def changed(
    path: str,
    permission: AnyPermission,
    use_case: Callable[..., Awaitable[T]],
    shown: Callable[[T], Json],
    body: type[WireModel],
) -> AdminRoute:
    """Return a POST route of `use_case(caller, *ids, body)`; operators call as an `Author`.

    An empty body (`NoBody`) is checked, but not passed on.
    """

    async def endpoint(call: AdminCall) -> Json:
        content = await call.body(body)
        arguments = () if body is NoBody else (content,)
        return shown(await use_case(call.changer, *call.path.values(), *arguments))

    return AdminRoute("POST", path, permission, endpoint, body)


def deleted(
    path: str, permission: AnyPermission, use_case: Callable[..., Awaitable[object]], kind: str
) -> AdminRoute:
    """Return a DELETE route of `use_case(caller, *ids)`."""

    async def endpoint(call: AdminCall) -> Json:
        ids = list(call.path.values())
        await use_case(call.changer, *ids)
        return deleted_body(kind, ids[-1] if path.endswith("}") else None)

    return AdminRoute("DELETE", path, permission, endpoint)


class AuditedAs:
    """Names of a body's field in the audit log, in place of its own."""

    def __init__(self, *names: str) -> None:
        self.names = names


def audited(body: BaseModel) -> Json:
    sent = body.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    data: Json = {}
    for name, value in sent.items():
        metadata = type(body).model_fields[name].metadata
        names = next((one.names for one in metadata if isinstance(one, AuditedAs)), (name,))
        data |= dict.fromkeys(names, value)
    return data


def _strange_key(model: type[BaseModel], document: dict[str, Any], within: str = "") -> str | None:
    for key in sorted(document):
        if key not in model.model_fields:
            return f"{within}{key}"
        value = document[key]
        if isinstance(value, dict) and (inner := _model_of(model.model_fields[key].annotation)):
            strange = _strange_key(inner, value, f"{within}{key}.")
            if strange is not None:
                return strange
    return None


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for kind in get_args(annotation) or (annotation,):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def starlette_routes(
    routes: Iterable[AdminRoute], bodies: BodyReader, trusted_proxies: Sequence[Network] = ()
) -> list[Route]:
    """Return one Starlette route per path, so that a 405 names all its methods."""
    by_url: dict[str, dict[str, AdminRoute]] = defaultdict(dict)
    for route in routes:
        assert route.method not in by_url[route.url], f"{route.method} {route.url} is there twice"
        by_url[route.url][route.method] = route
    return [
        Route(
            _pattern(url, by_method.values()),
            _Dispatch(by_method, bodies, trusted_proxies),
            methods=sorted(by_method),
        )
        for url, by_method in by_url.items()
    ]


def _pattern(url: str, routes: Iterable[AdminRoute]) -> str:
    if any(route.spans_slashes for route in routes):
        return f"{url.removesuffix('}')}:path}}"
    return url


class _Dispatch:
    def __init__(
        self,
        routes: Mapping[str, AdminRoute],
        bodies: BodyReader,
        trusted_proxies: Sequence[Network],
    ) -> None:
        self._routes = routes
        self._bodies = bodies
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        route = self._routes["GET" if request.method == "HEAD" else request.method]
        check_permission(scope, route.permission)
        _check_names(request, route)
        call = AdminCall(request, self._bodies, route, self._trusted_proxies)
        response = await route.endpoint(call)
        if not isinstance(response, Response):
            response = Response(orjson.dumps(response), media_type="application/json")
        response.headers["cache-control"] = "no-store"
        await response(scope, receive, send)


def _check_names(request: Request, route: AdminRoute) -> None:
    # PostgreSQL's text cannot hold a NUL, and a misspelt filter would let everything pass.
    pairs = [*request.path_params.items(), *request.query_params.multi_items()]
    for name, value in pairs:
        if "\0" in name or "\0" in value:
            raise invalid(name.replace("\0", ""), "it has a NUL character, which no name or id has")
    for name in sorted(request.query_params.keys()):
        if not (route.refuses or without_index(name) in route.query):
            raise unknown(shown(name))


def check_permission(scope: Mapping[str, Any], permission: AnyPermission) -> None:
    role: Role | OperatorRole
    operator: Operator | None = scope.get("operator")
    if operator is not None:
        role, granted = operator.role, OPERATOR_ROLES[operator.role]
        remedy = "Use a key of another operator."
    else:
        role = role_of(scope["principal"].key.scopes)
        granted, remedy = ROLES[role], "Use an admin key without scopes."
    if permission not in granted:
        raise PermissionDenied(
            f"You have insufficient permissions for this operation: it takes '{permission}', which "
            f"a key with the role '{role}' does not have. {remedy}",
            code="insufficient_permissions",
        )
