"""A model that is not gpt-oss is served with a package of its own and a line of registration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.models import format as formats
from tests.fakes.byte_format import STOP, byte_backend, spelled
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.stream import stream, texts
from tests.integration.api.bodies import create
from tests.integration.api.following import created, id_in, listed, resumed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.observation import Backends

REGISTERED = "tests.fakes.byte_format:ByteFormat"


@pytest.fixture(scope="module")
def asked() -> list[dict[str, Any]]:
    """What the second model's backend was asked."""
    return []


@pytest.fixture(scope="module")
async def both(
    own_database_url: str, backends: Backends, asked: list[dict[str, Any]]
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a gateway whose models are of two formats."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(formats.FORMAT_CLASSES, "bytes", REGISTERED)
        async with serving(byte_backend(asked)) as url:
            settings = gateway_settings(
                own_database_url,
                [url, *backends.urls],
                models=[{"id": "bytes", "format": "bytes"}, {"id": "gpt-oss-20b"}],
            )
            async with (
                running_gateway(settings) as running,
                http_client(running.url, headers=running.headers) as client,
            ):
                yield client


def reasoning(response: dict[str, Any]) -> list[str]:
    return [
        part["text"]
        for item in response["output"]
        if item["type"] == "reasoning"
        for part in item["content"]
    ]


async def test_a_model_of_a_second_format_is_asked_and_read_in_its_own_ids(
    both: httpx2.AsyncClient, asked: list[dict[str, Any]]
) -> None:
    made = await create(both, model="bytes", input="né?", instructions="Shout.")
    assert (texts(made), reasoning(made)) == (["1: NÉ?"], ["hm"])
    assert made["usage"]["output_tokens"] == len("hm") + len("1: NÉ?".encode()) + 3
    assert made["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    assert asked[-1]["stop_token_ids"] == [STOP]
    assert spelled(asked[-1]["prompt"]) == "Shout.\nné?\n\n"
    assert (await both.get(f"/v1/responses/{made['id']}")).json() == made


async def test_it_streams(both: httpx2.AsyncClient) -> None:
    events = await stream(both, {"model": "bytes", "input": "go"})
    deltas = [event["delta"] for event in events if event["type"].endswith("output_text.delta")]
    assert "".join(deltas) == "1: GO"
    assert events[-1]["type"] == "response.completed"


async def test_a_background_stream_of_it_resumes(both: httpx2.AsyncClient) -> None:
    whole = await listed(created(both, model="bytes", input="on"))
    assert await listed(resumed(both, id_in(whole), 4)) == whole[5:]


@pytest.mark.slow
async def test_it_continues_a_stored_response(both: httpx2.AsyncClient) -> None:
    first = await create(both, model="bytes", input="one")
    second = await create(both, model="bytes", input="two", previous_response_id=first["id"])
    third = await create(both, model="bytes", input="three", previous_response_id=second["id"])
    assert [texts(one) for one in (second, third)] == [["2: TWO"], ["3: THREE"]]


@pytest.mark.slow
async def test_models_of_two_formats_continue_each_other(
    both: httpx2.AsyncClient, asked: list[dict[str, Any]], backends: Backends
) -> None:
    first = await create(both, model="bytes", input="one")
    harmony = await create(both, input="two", previous_response_id=first["id"])
    assert harmony["status"] == "completed"
    third = await create(both, model="bytes", input="three", previous_response_id=harmony["id"])
    assert texts(third) == ["3: THREE"]
    told = spelled(asked[-1]["prompt"])
    assert told == f"\none\n\n1: ONE\n\ntwo\n\n{texts(harmony)[0]}\n\nthree\n\n"
