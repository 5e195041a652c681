"""`/v1/files`: upload files, list, download and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson
from starlette.responses import Response, StreamingResponse

from gateway.api.query import ORDERS, PAGE_ITEMS_MAX, choice, integer
from gateway.errors import ResourceNotFound
from gateway.protocol.container_bodies import PURPOSES, deleted, parse_upload
from gateway.services.zero_retention import require_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from gateway.api.multipart import FormReader
    from gateway.services.files import Download, Files
    from gateway.tenancy import Principal

FILES_MAX: Final = 10_000
"""OpenAI's bound on the files of one page, and as many as there are in one by default."""


class FileEndpoints:
    """Endpoints of uploaded files. Each URL has one method here."""

    def __init__(self, files: Files, forms: FormReader, *, is_on: bool) -> None:
        """Take no files if `is_on` is false: nothing here needs them."""
        self._files = files
        self._forms = forms
        self._is_on = is_on

    async def all(self, request: Request) -> Response:
        """Upload or list files, by the method of `/v1/files`."""
        principal = caller(request, is_on=self._is_on)
        if request.method == "POST":
            require_file_storage(principal)
            async with self._forms.read(request) as form:
                purpose, expires_after_s = parse_upload(form.fields)
                made = await self._files.create(principal, form.upload, purpose, expires_after_s)
            return json_response(made)
        query = request.query_params
        listed, has_more = await self._files.list(
            principal,
            limit=integer(query, "limit", minimum=1, maximum=FILES_MAX) or FILES_MAX,
            order=choice(query, "order", ORDERS) or "desc",
            after=query.get("after") or None,
            purpose=choice(query, "purpose", PURPOSES),
        )
        return page_response(listed, has_more=has_more)

    async def one(self, request: Request) -> Response:
        """Retrieve or delete `/v1/files/{id}`, by the method."""
        principal, file_id = caller(request, is_on=self._is_on), request.path_params["file_id"]
        if request.method == "DELETE":
            await self._files.delete(principal, file_id)
            return json_response(deleted("file", file_id))
        return json_response(await self._files.get(principal, file_id))

    async def content(self, request: Request) -> Response:
        """Send the bytes of a file: `GET /v1/files/{id}/content`."""
        principal, file_id = caller(request, is_on=self._is_on), request.path_params["file_id"]
        return download_response(await self._files.content(principal, file_id))


def caller(request: Request, *, is_on: bool) -> Principal:
    """Return the caller. Raises `ResourceNotFound` if Python is off."""
    if not is_on:
        raise ResourceNotFound(
            "This server runs no code, so it has neither containers nor files. Its operator "
            "switches them on with tools.python.enabled."
        )
    principal: Principal = request.scope["principal"]
    return principal


def require_file_storage(principal: Principal) -> None:
    """Raise `InvalidRequest` if nothing may be stored for the caller.

    Call it before the form is read: a long form is written to a temporary file.
    """
    require_storage(principal, "A file")


def page_limit(request: Request) -> int:
    """Return the `limit` of a list, 20 by default. Raises `InvalidRequest`."""
    return integer(request.query_params, "limit", minimum=1, maximum=PAGE_ITEMS_MAX) or 20


def json_response(body: Any) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


def page_response(listed: Sequence[dict[str, Any]], *, has_more: bool) -> Response:
    """Return one page of a list, in OpenAI's form."""
    return json_response(
        {
            "object": "list",
            "data": listed,
            "first_id": listed[0]["id"] if listed else None,
            "last_id": listed[-1]["id"] if listed else None,
            "has_more": has_more,
        }
    )


def download_response(download: Download) -> Response:
    """Send an uploaded file as an attachment: browsers must never show it as a page of ours."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(download.name, safe='')}",
        "content-length": str(download.size_bytes),
        "content-security-policy": "default-src 'none'; sandbox",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(
        download.chunks, headers=headers, media_type="application/octet-stream"
    )
