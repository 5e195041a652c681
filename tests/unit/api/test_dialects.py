"""Which dialect a request is answered in, and what that leaves as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

import orjson
import pytest

from gateway.api import dialects, sse
from gateway.api.access.authentication import Authentication
from gateway.protocol.stream_events import DeltaPattern, Deltas, Event
from gateway.tenancy import Dialect, Principal, TenantId
from tests.fakes.cases import each

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

THOUGHT = Event(
    "response.reasoning_text.delta",
    3,
    b'{"type":"response.reasoning_text.delta","sequence_number":3,"delta":"a"}',
    1,
)
UNKNOWN = Event("response.custom_tool_call_input.delta", 4, b"{}", 1)
BODY = orjson.dumps(
    {"object": "list", "data": [{"id": "r", "type": "reasoning", "encrypted_content": None}]}
)


def scope(dialect: Dialect = "openai") -> dict[str, Any]:
    return {"dialect": dialect}


async def routed(path: str, key: Dialect = "openai", **fields: Any) -> Scope:
    """The scope behind the middleware, for a key of a dialect."""
    seen: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope)

    async def nothing(*_: object) -> Any: ...

    principal = Principal(TenantId(UUID(int=1)), "acme", UUID(int=2), dialect=key)
    access: Any = SimpleNamespace(cached=lambda *_: principal, authenticate=nothing)
    headers = [(b"authorization", b"Bearer sk-1")]
    asked = {"type": "http", "path": path, "headers": headers, **fields}
    await Authentication(app, access, [], requests_max=1)(asked, nothing, nothing)
    return seen[0]


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_the_base_path_says_the_dialect_and_is_no_part_of_the_route(kind: str) -> None:
    found = await routed("/openresponses/v1/responses", type=kind)
    assert (found["dialect"], found["root_path"]) == ("openresponses", "/openresponses")
    assert found["path"] == "/openresponses/v1/responses"


async def test_a_gateway_below_a_path_of_its_own_has_the_base_path_below_that() -> None:
    found = await routed("/llm/openresponses/v1/models", root_path="/llm")
    assert (found["dialect"], found["root_path"]) == ("openresponses", "/llm/openresponses")
    other = await routed("/openresponses/v1/models", root_path="/llm")
    assert (other["dialect"], other["root_path"]) == ("openai", "/llm")


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/openresponses", "/openresponses/healthz", "/openresponses/v1x"]
)
async def test_at_any_other_path_the_key_says_it(path: str) -> None:
    for key in get_args(Dialect):
        found = await routed(path, key)
        assert found["dialect"] == key
        assert "root_path" not in found


async def test_a_lifespan_passes() -> None:
    assert (await routed("", type="lifespan")).keys() == {"type", "path", "headers"}


async def test_the_path_says_more_than_the_key() -> None:
    found = await routed("/openresponses/v1/responses", "openai")
    assert found["dialect"] == "openresponses"
    assert found["principal"].dialect == "openai"


def test_openai_s_dialect_is_what_there_is() -> None:
    encoder = sse.encoder_of("openai", obfuscate=True)
    assert encoder.event(THOUGHT) == sse.obfuscated(THOUGHT)
    assert dialects.body(scope(), BODY) is BODY
    assert dialects.data(scope(), UNKNOWN) is UNKNOWN.data


def test_the_other_dialect_has_its_names_and_the_same_padding() -> None:
    asked = scope("openresponses")
    encoder = sse.encoder_of("openresponses", obfuscate=True)
    name, data = encoder.event(THOUGHT).decode().split("\n", 1)
    assert name == "event: response.reasoning.delta"
    _, padding = sse.obfuscated(THOUGHT).split(b"obfuscation")
    assert data.encode().endswith(b"obfuscation" + padding)
    assert orjson.loads(dialects.data(asked, THOUGHT))["type"] == "response.reasoning.delta"
    (shown,) = orjson.loads(dialects.body(asked, BODY))["data"]
    assert shown == {"id": "r", "type": "reasoning", "status": "completed"}


@each("named", ["openai", "openresponses"])
@each("obfuscate", [True, False])
@each("kind", [THOUGHT.type, UNKNOWN.type, "response.output_text.delta"])
def test_a_run_of_deltas_is_written_as_each_of_them_is(
    named: Dialect, kind: str, obfuscate: bool
) -> None:
    head = b'{"type":"%b","sequence_number":' % kind.encode()
    deltas = Deltas(DeltaPattern(kind, head, b',"delta":', b"}"), 998, ("a", "bc", '"', "ä"))
    encoder = sse.encoder_of(named, obfuscate=obfuscate)
    assert encoder.run(deltas) == b"".join(map(encoder.event, deltas))


def test_what_is_left_out_of_a_stream_is_a_comment() -> None:
    asked = scope("openresponses")
    assert sse.encoder_of(asked["dialect"], obfuscate=True).event(UNKNOWN) == sse.COMMENT
    assert dialects.data(asked, UNKNOWN) == b""
