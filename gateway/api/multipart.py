"""Uploads: the form of a request with a file, within bounds, its bytes in a file of this machine.

Bytes are parsed as they come: no more of them are in memory than one part of a body and what a file
that is spooled keeps there.
"""

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
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Collection,
        Mapping,
    )

    from starlette.requests import Request
    from starlette.types import Receive

FORM_BYTES: Final = 64 * 1024
"""Bytes of a form around its file, at most: other fields, and the heads of all."""
FIELDS_MAX: Final = 16
FILE_TIMEOUT_S: Final = 300.0
HELD_BYTES_MAX: Final = 768 << 20
"""Bytes of forms that a process holds at once, most of them in temporary files, for which the chart
has 1 GiB (`tmpSizeLimit`): Kubernetes evicts a pod that has more."""
_NO_ROOM: Final = (
    "More files are sent at once than this server takes. Send them one after the other, or try "
    "again in a moment."
)
_CHARSET: Final = re.compile(r";\s*charset\s*=[^;]*", re.IGNORECASE)
"""Pattern of a charset, which is removed: the names and fields of a form are UTF-8 (RFC 7578 §5.1).
Python would read them in any codec that it has, of which some fail, and others make what no answer
could repeat: lone surrogates."""


@dataclass(frozen=True, slots=True)
class Form:
    """The file of a form, if it has one, and its other fields."""

    file: Upload | None
    fields: Mapping[str, str]

    @property
    def upload(self) -> Upload:
        """Return the file. Raises `InvalidRequest` if there is none."""
        if self.file is None:
            raise missing("file")
        return self.file


@dataclass(frozen=True, slots=True)
class FormReader:
    """Reader of forms with a file of `file_bytes_max` bytes or fewer, within `timeout_s`.

    `strict`: fields that mean nothing are refused.
    """

    file_bytes_max: int
    timeout_s: float = FILE_TIMEOUT_S
    strict: bool = False
    held: HeldBytes = field(default_factory=partial(HeldBytes, HELD_BYTES_MAX, _NO_ROOM))

    @staticmethod
    def is_form(request: Request) -> bool:
        return request.headers.get("content-type", "").lower().startswith("multipart/form-data")

    @asynccontextmanager
    async def read(self, request: Request, served: Collection[str]) -> AsyncIterator[Form]:
        """Read the form of a request; its file is deleted at the end of the block.

        Fields beside the file that are not `served` are noted as ignored. Raises `InvalidRequest`,
        `PayloadTooLarge`, `UnsupportedEncoding`, `RateLimited`, `ClientDisconnected`.
        """
        check_unencoded(request.headers.raw)
        if not self.is_form(request):
            raise InvalidRequest(
                "Send the file as multipart/form-data, in the field 'file'.",
                code="invalid_content_type",
            )
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self.file_bytes_max + FORM_BYTES:
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
                f"We could not read the form of your request: {error.message}",
                code="invalid_form",
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
