"""Check the headers that a request sets for its MCP server, which gets nothing else of it.

A request's headers go to the server that it names, and to no other. A request may not set headers
that make up the connection, describe another party, or belong to the protocol.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADERS_MAX: Final = 16
VALUE_CHARS_MAX: Final = 4096
AUTHORIZATION: Final = "authorization"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_REFUSED: Final = re.compile(
    r"host|connection|cookie2?|set-cookie|forwarded|via|keep-alive|te|trailer|upgrade|expect|accept"
    r"|accept-encoding|last-event-id|x-session-id|x-real-ip"
    r"|(?:content|transfer|x-forwarded|proxy|mcp|sec)-.*"
)


def outgoing(headers: Mapping[str, str], authorization: str | None, param: str) -> dict[str, str]:
    """Return the headers to send to a request's server, by lower-case name.

    `authorization` is an OAuth access token. Raises `InvalidRequest` with the path of the fault,
    below `param`; its message contains no value.
    """
    if len(headers) > HEADERS_MAX:
        raise _invalid(f"Expected at most {HEADERS_MAX} headers.", f"{param}.headers")
    sent: dict[str, str] = {}
    for name, value in headers.items():
        where = f"{param}.headers"
        lower = name.lower()
        if not _NAME.fullmatch(name) or lower in sent:
            raise _invalid("A header has a name that cannot be sent, or is there twice.", where)
        if _REFUSED.fullmatch(lower):
            raise _invalid(f"The header '{lower}' cannot be set by a request: leave it out.", where)
        if len(value) > VALUE_CHARS_MAX or not _VALUE.fullmatch(value):
            raise _invalid(
                f"The header '{lower}' has a value that cannot be sent: 1 to {VALUE_CHARS_MAX} "
                "printable ASCII characters are expected.",
                where,
            )
        sent[lower] = value
    if authorization is not None:
        sent = _with_token(sent, authorization, param)
    return sent


def _with_token(sent: dict[str, str], token: str, param: str) -> dict[str, str]:
    if AUTHORIZATION in sent:
        message = "Give either 'authorization' or the header 'Authorization', not both."
        raise _invalid(message, f"{param}.authorization")
    if len(token) > VALUE_CHARS_MAX or not _TOKEN.fullmatch(token):
        message = (
            f"Expected an access token of 1 to {VALUE_CHARS_MAX} printable ASCII characters, no "
            "spaces, and without the word Bearer before it."
        )
        raise _invalid(message, f"{param}.authorization")
    return {**sent, AUTHORIZATION: f"Bearer {token}"}


def credential(headers: Mapping[str, str]) -> str:
    """Return a digest of the headers sent to a server; empty for none."""
    if not headers:
        return ""
    digest = hashlib.sha256()
    for part in (part for pair in sorted(headers.items()) for part in pair):
        content = part.encode()
        digest.update(len(content).to_bytes(4, "big") + content)
    return digest.hexdigest()


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_value", param=param)
