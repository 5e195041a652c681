"""Requests that are passed through: embeddings and reranking.

Of these the gateway reads the model and what the endpoint cannot do without; all else goes to the
server as it came. Sources: https://platform.openai.com/docs/api-reference/embeddings; for `rerank`
the request that vLLM and SGLang share with Cohere and Jina.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.errors import InvalidRequest
from gateway.protocol.json_body import parse_object

if TYPE_CHECKING:
    from gateway.protocol.json_body import InputLimits

ProxiedKind = Literal["embeddings", "rerank"]

PATHS: Final[dict[ProxiedKind, str]] = {"embeddings": "/v1/embeddings", "rerank": "/v1/rerank"}
_NEEDED: Final[dict[ProxiedKind, dict[str, tuple[type, ...]]]] = {
    "embeddings": {"model": (str,), "input": (str, list)},
    "rerank": {"model": (str,), "query": (str, dict), "documents": (list, dict)},
}
_NAMES: Final[dict[type, str]] = {str: "a string", list: "an array", dict: "an object"}


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """One request; `fields` are all of its body."""

    kind: ProxiedKind
    model: str
    fields: dict[str, Any]


def parse_proxied(
    body: bytes, kind: ProxiedKind, *, limits: InputLimits, strict: bool = False
) -> ProxiedRequest:
    """Raises `InvalidRequest`. What is not known is for the server to judge, `strict` or not."""
    del strict
    fields = parse_object(body, limits)
    for name, kinds in _NEEDED[kind].items():
        if fields.get(name) is None:
            raise InvalidRequest(
                f"Missing required parameter: '{name}'.",
                code="missing_required_parameter",
                param=name,
            )
        if type(fields[name]) not in kinds:
            wanted = " or ".join(_NAMES[one] for one in kinds)
            raise InvalidRequest(
                f"Invalid type for '{name}': expected {wanted}.", code="invalid_type", param=name
            )
    return ProxiedRequest(kind, fields["model"], fields)
