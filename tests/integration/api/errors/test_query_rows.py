"""What queries get wrong, row by row, and every form in which they are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.api.bodies import create
from tests.integration.api.errors.rows import Row, assert_row

if TYPE_CHECKING:
    import httpx2


QUERIES: list[tuple[str, Row]] = [
    *(
        (
            f"?{name}={text}",
            Row(
                400,
                "invalid_value",
                name,
                f"Invalid value: '{text}'. Supported values are: 'true' and 'false'.",
            ),
        )
        for name, text in (("stream", "1"), ("stream", "True"), ("include_obfuscation", "0"))
    ),
    (
        "?stream=true&starting_after=-1",
        Row(
            400,
            "integer_below_min_value",
            "starting_after",
            "Invalid 'starting_after': integer below minimum value. Expected a value >= 0, but got "
            "-1 instead.",
        ),
    ),
    (
        "?stream=true&starting_after=last",
        Row(
            400,
            "invalid_type",
            "starting_after",
            "Invalid type for 'starting_after': expected an integer, but got 'last' instead.",
        ),
    ),
    (
        "/input_items?limit=0",
        Row(
            400,
            "integer_below_min_value",
            "limit",
            "Invalid 'limit': integer below minimum value. Expected a value >= 1, but got 0 "
            "instead.",
        ),
    ),
    (
        "/input_items?limit=101",
        Row(
            400,
            "integer_above_max_value",
            "limit",
            "Invalid 'limit': integer above maximum value. Expected a value <= 100, but got 101 "
            "instead.",
        ),
    ),
    (
        "/input_items?order=up",
        Row(
            400,
            "invalid_value",
            "order",
            "Invalid value: 'up'. Supported values are: 'asc' and 'desc'.",
        ),
    ),
    (
        "/input_items?before=msg_1",
        Row(
            400,
            "invalid_value",
            "before",
            "Invalid 'before': this list has no item of that id, or has it no longer. Begin again "
            "without 'before'.",
        ),
    ),
    (
        "/input_items?after=msg_1&before=msg_2",
        Row(
            400,
            "mutually_exclusive_parameters",
            "before",
            "Mutually exclusive parameters: 'after' and 'before'. Ensure you are only providing "
            "one of them.",
        ),
    ),
]


@pytest.mark.parametrize(("query", "row"), QUERIES)
async def test_what_a_query_gets_wrong_is_answered_with_its_row(
    client: httpx2.AsyncClient, query: str, row: Row
) -> None:
    response = await create(client, input="x")
    assert_row(await client.get(f"/v1/responses/{response['id']}{query}"), row)


@pytest.mark.requirement("http.arrays-in-queries")
@pytest.mark.requirement("http.beta-is-ignored")
@pytest.mark.parametrize(
    "query",
    [
        "include[]=reasoning.encrypted_content&include[]=message.output_text.logprobs",
        "include%5B%5D=reasoning.encrypted_content",
        "include=reasoning.encrypted_content&include=message.output_text.logprobs",
        "stream=false&include_obfuscation=true",
        "starting_after=nowhere",
        "beta=true",
    ],
)
async def test_queries_in_every_form_that_clients_use_are_served(
    client: httpx2.AsyncClient, query: str
) -> None:
    response = await create(client, input="x")
    for path in ("", "/input_items"):
        answer = await client.get(f"/v1/responses/{response['id']}{path}?{query}")
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", ["include", "include[]"])
async def test_an_unknown_include_is_named_by_its_place(
    client: httpx2.AsyncClient, name: str
) -> None:
    response = await create(client, input="x")
    query = f"{name}=reasoning.encrypted_content&{name}=bogus"
    answer = await client.get(f"/v1/responses/{response['id']}?{query}")
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "include[1]")
    assert error["message"].endswith("and 'output_messages.token_ids'.")
