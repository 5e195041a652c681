"""`GET /v1/models`: OpenAI's objects, with what clients need to size their context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from openai.types import Model

from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    import httpx2


@pytest.mark.requirement("models.list")
async def test_the_models_are_listed_with_their_context(client: httpx2.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    assert set(listed) == {"object", "data"}
    assert listed["object"] == "list"
    (model,) = listed["data"]
    created = model.pop("created")
    assert isinstance(created, int)
    assert model == {
        "id": MODEL,
        "object": "model",
        "owned_by": "harmony-gateway",
        "shutdown_date": None,
        "context_length": 131_072,
        "max_output_tokens": 131_072,
        "aliases": ["small"],
        "capabilities": ["reasoning", "tools", "structured_outputs", "streaming", "background"],
        "reasoning_effort": "medium",
        "parent": None,
    }
    Model.model_validate({**model, "created": created}, strict=True)


@pytest.mark.requirement("models.retrieve")
async def test_one_model_is_told_as_in_the_list(client: httpx2.AsyncClient) -> None:
    (listed,) = (await client.get("/v1/models")).json()["data"]
    assert (await client.get(f"/v1/models/{MODEL}")).json() == listed


async def test_the_list_is_for_every_tenant_the_same(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    mine, theirs = [(await each.get("/v1/models")).json() for each in (client, stranger)]
    assert mine == theirs


async def test_its_head_has_its_headers(client: httpx2.AsyncClient) -> None:
    for path in ("/v1/models", f"/v1/models/{MODEL}"):
        head, body = await client.head(path), await client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == body.headers[name]
