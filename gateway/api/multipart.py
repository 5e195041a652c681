"""Multipart uploads, parsed as they arrive and spooled to disk."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from gateway.api.client_connection import ClientDisconnected
from gateway.api.content_encoding import check_unencoded
from gateway.errors import InvalidRequest, PayloadTooLarge
from gateway.held_bytes import HeldBytes
from gateway.protocol.base import presentable
from gateway.protocol.container_bodies import check_file_name
from gateway.protocol.request_errors import missing, unknown
from gateway.services.containers import Upload
from gateway.services.executor import WORKS_FOR

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping

    from starlette.requests import Request
    from starlette.types import Receive

FORM_BYTES: Final = 64 * 1024
"""Bytes of a form around its file: fields and part headers."""
FIELDS_MAX: Final = 16
FILE_TIMEOUT_S: Final = 300.0
HELD_BYTES_MAX: Final = 768 << 20
"""Bytes of a process's forms, mostly in temporary files. The chart's `tmpSizeLimit` is 1 GiB, and
Kubernetes evicts a pod that exceeds it.
"""
_NO_ROOM: Final = (
    "More files are sent at once than this server takes. Send them one after the other, or try "
    "again in a moment."
)
_CHARSET: Final = re.compile(r";\s*charset\s*=[^;]*", re.IGNORECASE)
"""Removed: forms are UTF-8 (RFC 7578 §5.1). Python would decode with any codec that it has; some
fail, and some make lone surrogates, which no answer can repeat.
"""


@dataclass(frozen=True, slots=True)
class Form:
    file: Upload | None
    fields: Mapping[str, str]

    @property
    def upload(self) -> Upload:
        if self.file is None:
            raise missing("file")
        return self.file


@dataclass(frozen=True, slots=True)
class FormReader:
    file_bytes_max: int
    timeout_s: float = FILE_TIMEOUT_S
    strict: bool = False
    held: HeldBytes = field(default_factory=partial(HeldBytes, HELD_BYTES_MAX, _NO_ROOM))

    @staticmethod
    def is_form(request: Request) -> bool:
        return request.headers.get("content-type", "").lower().startswith("multipart/form-data")

    @asynccontextmanager
    async def read(self, request: Request, served: Collection[str]) -> AsyncIterator[Form]:
        """Read a form; its file is deleted at the end of the block.

        Other fields than `served` ones are reported as ignored, or refused if `strict`. Raises
        `InvalidRequest`, `PayloadTooLarge`, `UnsupportedEncoding`, `RateLimited`,
        `ClientDisconnected`.
        """
        check_unencoded(request.headers.raw)
        if not self.is_form(request):
            raise InvalidRequest(
                "Send the file as multipart/form-data, in the field 'file'.",
                code="invalid_content_type",
            )
        # Of a chunked body the length is unknown.
        if int(request.headers.get("content-length", 0)) > self.file_bytes_max + FORM_BYTES:
            raise self._too_large()
        with self.held.one(WORKS_FOR.get()) as count:
            form = await self._parse(request, count)
            try:
                others = tuple(name for name in form if name != "file" and name not in served)
                if self.strict and others:
                    raise unknown(others[0])
                request.scope["record"].note_ignored(presentable(others))
                fields = {name: value for name, value in form.items() if isinstance(value, str)}
                yield Form(self._upload(form.get("file")), fields)
            finally:
                await form.close()

    async def _parse(self, request: Request, count: Callable[[int], None]) -> FormData:
        content_type = _CHARSET.sub("", request.headers["content-type"])
        parser = MultiPartParser(
            Headers({"content-type": content_type}),
            self._parts(request.receive, count),
            max_files=1,
            max_fields=FIELDS_MAX,
            max_part_size=FORM_BYTES,
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                return await parser.parse()
        except MultiPartException as error:
            raise InvalidRequest(
                f"We could not read the form of your request: {error.message}", code="invalid_form"
            ) from None
        except TimeoutError:
            raise InvalidRequest(
                f"The file did not arrive within {self.timeout_s:g} seconds. Please send it again."
            ) from None

    def _upload(self, file: UploadFile | str | None) -> Upload | None:
        if not isinstance(file, UploadFile):
            return None
        if (file.size or 0) > self.file_bytes_max:
            raise self._too_large()
        return Upload(check_file_name(file.filename or ""), file.file)

    async def _parts(
        self, receive: Receive, count: Callable[[int], None]
    ) -> AsyncGenerator[bytes, None]:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > self.file_bytes_max + FORM_BYTES:
                raise self._too_large()
            count(len(part))
            yield part

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"A file has at most {self.file_bytes_max} bytes here. Send it in parts, or send less."
        )
