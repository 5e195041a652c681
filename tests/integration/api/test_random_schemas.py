"""Whatever stands in the place of a schema: it is served or refused, and is nobody's failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fakes.any_schemas import SCHEMAS, VALUES
from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

Json = dict[str, Any]
Asked = tuple[str, Json]

SAID: Final = "[[sim think=none say=fine]] go"


OBJECTS: Final = SCHEMAS.map(lambda schema: {**schema, "type": "object"})
"""Fit to be strict."""


def answer(schema: Any, *, strict: bool) -> Asked:
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": strict}
    return "/v1/responses", {"input": SAID, "text": {"format": form}}


def function(schema: Any, *, strict: bool) -> Asked:
    tool = {"type": "function", "name": "f", "parameters": schema, "strict": strict}
    return "/v1/responses", {"input": SAID, "tools": [tool]}


def member(schema: Any, *, strict: bool) -> Asked:
    path, body = function(schema, strict=strict)
    space = {"type": "namespace", "name": "ns", "description": "", "tools": body["tools"]}
    return path, {**body, "tools": [space]}


def counted(schema: Any, *, strict: bool) -> Asked:
    return "/v1/responses/input_tokens", answer(schema, strict=strict)[1]


def chat_answer(schema: Any, *, strict: bool) -> Asked:
    form = {"name": "answer", "schema": schema, "strict": strict}
    return chat(response_format={"type": "json_schema", "json_schema": form})


def chat_tool(schema: Any, *, strict: bool) -> Asked:
    function = {"name": "f", "parameters": schema, "strict": strict}
    return chat(tools=[{"type": "function", "function": function}])


def chat_function(schema: Any, *, strict: bool) -> Asked:
    del strict  # functions of old were none of them
    return chat(functions=[{"name": "f", "parameters": schema}])


def chat(**fields: Any) -> Asked:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": SAID}], **fields}


PLACES: list[Callable[..., Asked]] = [
    *(answer, function, member, counted, chat_answer, chat_tool, chat_function)
]


@pytest.mark.slow
@pytest.mark.requirement("error.malformed-schemas")
@given(schema=SCHEMAS | OBJECTS | VALUES, place=st.sampled_from(PLACES), strict=st.booleans())
@example(schema={"type": {"a": 1}}, place=answer, strict=False)
@example(schema={"type": "object", "properties": {"a": {"type": "any"}}}, place=answer, strict=True)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_any_schema_is_served_or_refused(
    client: httpx2.AsyncClient, schema: Any, place: Callable[..., Asked], *, strict: bool
) -> None:
    path, body = place(schema, strict=strict)
    found = await client.post(path, json={"model": MODEL, **body})
    error = found.json().get("error")
    if found.status_code == 400:
        assert error["param"], found.text
    elif error is None:
        assert found.status_code == 200, found.text
    else:  # a schema that no value satisfies, which nobody can tell from looking at it
        assert error["code"] == "invalid_structured_output", found.text
