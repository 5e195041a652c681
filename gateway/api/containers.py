"""`/v1/containers`: create, list and delete containers, and the same for their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from gateway.api.files import (
    caller,
    download_response,
    json_response,
    page_limit,
    page_response,
    require_file_storage,
)
from gateway.api.query import ORDERS, choice
from gateway.protocol.container_bodies import parse_container, parse_container_file
from gateway.protocol.responses.create_request import refuse_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from gateway.api.client_connection import BodyReader
    from gateway.api.multipart import FormReader
    from gateway.protocol.base import BodyModel
    from gateway.services.containers import Containers
    from gateway.tenancy import Principal

AnyBody = TypeVar("AnyBody", bound="BodyModel")


class ContainerEndpoints:
    """Endpoints of containers and their files. Each URL has one method here."""

    def __init__(
        self, containers: Containers, bodies: BodyReader, forms: FormReader, *, is_on: bool
    ) -> None:
        """Answer 404 if `is_on` is false: Python is off."""
        self._containers = containers
        self._bodies = bodies
        self._forms = forms
        self._is_on = is_on

    async def all(self, request: Request) -> Response:
        """Create or list containers, by the method of `/v1/containers`."""
        principal = caller(request, is_on=self._is_on)
        if request.method == "POST":
            refuse_key(request.headers.raw)
            asked = await self._read(request, parse_container)
            return json_response(await self._containers.create(principal, asked))
        listed, has_more = await self._containers.list(
            principal, **_page(request), name=request.query_params.get("name")
        )
        return page_response(listed, has_more=has_more)

    async def one(self, request: Request) -> Response:
        """Retrieve or delete `/v1/containers/{id}`, by the method."""
        principal, container_id = self._caller_and_id(request)
        if request.method == "DELETE":
            await self._containers.delete(principal, container_id)
            return Response(status_code=204)
        return json_response(await self._containers.get(principal, container_id))

    async def files(self, request: Request) -> Response:
        """Add or list files, by the method of `/v1/containers/{id}/files`."""
        principal, container_id = self._caller_and_id(request)
        if request.method == "GET":
            listed, has_more = await self._containers.list_files(
                principal, container_id, **_page(request)
            )
            return page_response(listed, has_more=has_more)
        require_file_storage(principal)
        if self._forms.is_form(request):
            async with self._forms.read(request) as form:
                made = await self._containers.add_file(principal, container_id, form.upload)
            return json_response(made)
        asked = await self._read(request, parse_container_file)
        return json_response(
            await self._containers.copy_file(principal, container_id, asked.file_id)
        )

    async def file(self, request: Request) -> Response:
        """Retrieve or delete `/v1/containers/{id}/files/{file_id}`, by the method."""
        principal, container_id = self._caller_and_id(request)
        file_id = request.path_params["file_id"]
        if request.method == "DELETE":
            await self._containers.delete_file(principal, container_id, file_id)
            return Response(status_code=204)
        return json_response(await self._containers.get_file(principal, container_id, file_id))

    async def content(self, request: Request) -> Response:
        """Send the bytes of a file: `GET /v1/containers/{id}/files/{file_id}/content`."""
        principal, container_id = self._caller_and_id(request)
        file_id = request.path_params["file_id"]
        found = await self._containers.file_content(principal, container_id, file_id)
        return download_response(found)

    async def _read(self, request: Request, parse: Callable[..., AnyBody]) -> AnyBody:
        # Parameters that have no meaning here are logged, and named in a header.
        body = await self._bodies.read(request.scope, request.receive)
        asked = await self._bodies.parse(body, parse)
        if asked.ignored:
            request.scope["record"].facts["ignored_parameters"] = ", ".join(asked.ignored)
        return asked

    def _caller_and_id(self, request: Request) -> tuple[Principal, str]:
        return caller(request, is_on=self._is_on), request.path_params["container_id"]


def _page(request: Request) -> dict[str, Any]:
    query = request.query_params
    return {
        "limit": page_limit(request),
        "order": choice(query, "order", ORDERS) or "desc",
        "after": query.get("after") or None,
    }
