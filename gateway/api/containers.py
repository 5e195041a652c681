from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.api.query import choice, json_response, list_body, page_query
from gateway.api.streaming import STREAM_LIMITS, TimedResponse
from gateway.errors import ResourceNotFound
from gateway.protocol.container_bodies import (
    PURPOSES,
    UPLOAD_FIELDS,
    deleted,
    parse_container,
    parse_container_file,
    parse_upload,
)
from gateway.protocol.responses.create_request import refuse_key
from gateway.services.zero_retention import require_storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from gateway.api.multipart import FormReader
    from gateway.api.request_body import BodyReader
    from gateway.api.streaming import StreamLimits
    from gateway.services.containers import Containers, Download, Files, Json
    from gateway.tenancy import Principal


_BYTES: Final = "application/octet-stream"
FILES_MAX: Final = 10_000
"""OpenAI's maximum and default for the files of one page."""


class ContainerEndpoints:
    def __init__(
        self, containers: Containers, bodies: BodyReader, forms: FormReader, *, is_on: bool
    ) -> None:
        self._containers = containers
        self._bodies = bodies
        self._forms = forms
        self._is_on = is_on

    async def all(self, request: Request) -> Response:
        principal = caller(request, is_on=self._is_on)
        if request.method == "POST":
            refuse_key(request.headers.raw)
            params, _ = await self._bodies.read_fields(
                request.scope, request.receive, parse_container
            )
            return json_response(await self._containers.create(principal, params))
        query = request.query_params
        listed, has_more = await self._containers.list(
            principal, page_query(query), name=query.get("name")
        )
        return json_response(list_body(listed, has_more=has_more))

    async def one(self, request: Request) -> Response:
        principal, container_id = self._caller_and_id(request)
        if request.method == "DELETE":
            await self._containers.delete(principal, container_id)
            return json_response(deleted("container.deleted", container_id))
        return json_response(await self._containers.get(principal, container_id))

    async def files(self, request: Request) -> Response:
        principal, container_id = self._caller_and_id(request)
        if request.method != "POST":
            listed, has_more = await self._containers.list_files(
                principal, container_id, page_query(request.query_params)
            )
            return json_response(list_body(listed, has_more=has_more))
        refuse_key(request.headers.raw)
        # Before the form is read: a long one is written to a temporary file.
        require_storage(principal, "A file")
        if self._forms.is_form(request):
            return json_response(await self._add_form(request, principal, container_id))
        params, _ = await self._bodies.read_fields(
            request.scope, request.receive, parse_container_file
        )
        return json_response(
            await self._containers.copy_file(principal, container_id, params.file_id)
        )

    async def _add_form(self, request: Request, principal: Principal, container_id: str) -> Json:
        # Many releases of OpenAI's SDKs send a form even if it has `file_id` alone.
        async with self._forms.read(request, {"file_id"}) as form:
            file_id = form.fields.get("file_id")
            if form.file is None and file_id is not None:
                return await self._containers.copy_file(principal, container_id, file_id)
            return await self._containers.add_file(principal, container_id, form.upload)

    async def file(self, request: Request) -> Response:
        principal, container_id = self._caller_and_id(request)
        file_id = request.path_params["file_id"]
        if request.method == "DELETE":
            await self._containers.delete_file(principal, container_id, file_id)
            return json_response(deleted("container.file.deleted", file_id))
        return json_response(await self._containers.get_file(principal, container_id, file_id))

    async def content(self, request: Request) -> Response:
        principal, container_id = self._caller_and_id(request)
        file_id = request.path_params["file_id"]
        content = await self._containers.file_content(principal, container_id, file_id)
        return download_response(request, content)

    def _caller_and_id(self, request: Request) -> tuple[Principal, str]:
        return caller(request, is_on=self._is_on), request.path_params["container_id"]


class FileEndpoints:
    def __init__(self, files: Files, forms: FormReader, *, is_on: bool) -> None:
        self._files = files
        self._forms = forms
        self._is_on = is_on

    async def all(self, request: Request) -> Response:
        principal = caller(request, is_on=self._is_on)
        if request.method == "POST":
            refuse_key(request.headers.raw)
            require_storage(principal, "A file")  # before the form is read
            async with self._forms.read(request, UPLOAD_FIELDS) as form:
                purpose, expires_after_s = parse_upload(form.fields)
                made = await self._files.create(principal, form.upload, purpose, expires_after_s)
            return json_response(made)
        query = request.query_params
        listed, has_more = await self._files.list(
            principal,
            page_query(query, limit=FILES_MAX, limit_max=FILES_MAX),
            purpose=choice(query, "purpose", PURPOSES),
        )
        return json_response(list_body(listed, has_more=has_more))

    async def one(self, request: Request) -> Response:
        principal, file_id = caller(request, is_on=self._is_on), request.path_params["file_id"]
        if request.method == "DELETE":
            await self._files.delete(principal, file_id)
            return json_response(deleted("file", file_id))
        return json_response(await self._files.get(principal, file_id))

    async def content(self, request: Request) -> Response:
        principal, file_id = caller(request, is_on=self._is_on), request.path_params["file_id"]
        return download_response(request, await self._files.content(principal, file_id))


def caller(request: Request, *, is_on: bool) -> Principal:
    if not is_on:
        raise ResourceNotFound(
            "This server runs no code, so it has neither containers nor files. Its operator "
            "switches them on with tools.python.enabled."
        )
    principal: Principal = request.scope["principal"]
    return principal


async def _parts(chunks: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        for start in range(0, len(chunk), bytes_max):
            yield chunk[start : start + bytes_max]


def download_response(
    request: Request, download: Download, limits: StreamLimits = STREAM_LIMITS
) -> Response:
    """Send an uploaded file as an attachment: browsers must never show it as a page of ours."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(download.name, safe='')}",
        "content-length": str(download.size_bytes),
        "content-security-policy": "default-src 'none'; sandbox",
        "x-content-type-options": "nosniff",
    }
    if request.method == "HEAD":
        return Response(headers=headers, media_type=_BYTES)
    parts = _parts(download.chunks, limits.write_bytes_max)
    response = TimedResponse(parts, headers=headers, media_type=_BYTES)
    response.write_timeout_s = limits.write_timeout_s
    return response
