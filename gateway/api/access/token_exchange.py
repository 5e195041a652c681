"""`POST /oauth/token`: exchange an issuer's token for one of the gateway.

OAuth 2.0 Token Exchange (https://www.rfc-editor.org/rfc/rfc8693), as JSON (openai-python) or as a
form (OAuth clients), and JWT bearer assertions (https://www.rfc-editor.org/rfc/rfc7523).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import orjson

from gateway.api.query import json_response
from gateway.errors import (
    InvalidRequest,
    IssuerUnavailable,
    PayloadTooLarge,
    TokenNotAdmitted,
    TokenRefused,
)
from gateway.services.federation import TOKEN_BYTES_MAX, ExchangeRequest

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from gateway.api.request_body import BodyReader
    from gateway.services.federation import Exchanged, Federation

TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TYPE: Final = "urn:ietf:params:oauth:token-type:"
SUBJECT_TYPES: Final = (f"{_TYPE}jwt", f"{_TYPE}id_token")
_FORM: Final = b"application/x-www-form-urlencoded"
_FIELDS_MAX: Final = 32
BODY_BYTES_MAX: Final = 2 * TOKEN_BYTES_MAX
"""Anybody may send a body, and it has little besides the token."""


class _Refused(Exception):
    """Refusal with an `error` code of https://www.rfc-editor.org/rfc/rfc6749#section-5.2."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error = error


class TokenExchangeEndpoint:
    """ASGI application that answers with OAuth's errors, as its clients and the SDK expect."""

    def __init__(self, federation: Federation, bodies: BodyReader) -> None:
        self._federation = federation
        self._bodies = replace(bodies, own_bytes_max=BODY_BYTES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(scope, receive)
        response.headers["cache-control"] = "no-store"
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        try:
            exchange = exchange_of(await self._fields(scope, receive))
            return json_response(_body(await self._federation.exchange(exchange)))
        except _Refused as refusal:
            return _error(400, refusal.error, str(refusal))
        except TokenNotAdmitted as refusal:
            return _error(400, "invalid_grant", refusal.message)
        except TokenRefused as refusal:
            return _error(400, "invalid_subject_token", refusal.message)
        except (InvalidRequest, PayloadTooLarge) as refusal:
            return _error(400, "invalid_request", refusal.message)
        except IssuerUnavailable as failure:
            answer = _error(
                503,
                "temporarily_unavailable",
                "The issuer of the token does not answer, so the token cannot be verified. Please "
                "try again in a few seconds.",
            )
            answer.headers["retry-after"] = str(max(1, round(failure.retry_after_s or 1)))
            return answer

    async def _fields(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        body = await self._bodies.read(scope, receive)
        kind = next((v for name, v in scope["headers"] if name == b"content-type"), b"")
        try:
            if kind.partition(b";")[0].strip().lower() == _FORM:
                return dict(parse_qsl(body.decode(), max_num_fields=_FIELDS_MAX))
            document = orjson.loads(body)
        except ValueError as error:
            raise _Refused(
                "invalid_request", "The body is neither a JSON object nor a form."
            ) from error
        if not isinstance(document, dict):
            raise _Refused("invalid_request", "The body is no JSON object.")
        return document


def exchange_of(fields: dict[str, Any]) -> ExchangeRequest:
    grant = _text(fields, "grant_type")
    if grant == JWT_BEARER:
        token = _text(fields, "assertion")
    elif grant == TOKEN_EXCHANGE:
        kind = _text(fields, "subject_token_type")
        if kind not in SUBJECT_TYPES:
            raise _Refused(
                "invalid_request", f"'subject_token_type' must be {' or '.join(SUBJECT_TYPES)}."
            )
        token = _text(fields, "subject_token")
    else:
        raise _Refused(
            "unsupported_grant_type", f"'grant_type' must be {TOKEN_EXCHANGE} or {JWT_BEARER}."
        )
    return ExchangeRequest(
        token, _text(fields, "identity_provider_id"), _text(fields, "service_account_id")
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise _Refused("invalid_request", f"'{name}' is missing, or no string.")
    return value


def _body(made: Exchanged) -> dict[str, Any]:
    body = {
        "access_token": made.token,
        "issued_token_type": f"{_TYPE}access_token",
        "token_type": "Bearer",
        "expires_in": made.expires_in_s,
    }
    return body | ({"scope": " ".join(sorted(made.scopes))} if made.scopes else {})


def _error(status: int, error: str, description: str) -> Response:
    return json_response({"error": error, "error_description": description}, status=status)
