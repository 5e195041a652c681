"""Code interpreter in a whole gateway: real containers, the API of containers and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.fakes.gateway import RunningGateway, gateway_settings, new_key, running_gateway
from tests.fakes.python_containers import HAS_BUBBLEWRAP, SYSTEM_PYTHON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai.types.responses import Response

    from gateway.settings import Settings
    from tests.fakes.observation import Backends

pytestmark = pytest.mark.skipif(
    not HAS_BUBBLEWRAP, reason="bubblewrap and /usr/bin/python3 are not both here"
)
MODEL = "gpt-oss-20b"
AUTO: dict[str, Any] = {"type": "auto"}
OUTPUTS = "code_interpreter_call.outputs"


@pytest.fixture(scope="module")
def python_settings(own_database_url: str, backends: Backends) -> Settings:
    python = {"enabled": True, "engine": "linux", "interpreter": str(SYSTEM_PYTHON), "timeout_s": 1}
    return gateway_settings(
        own_database_url, backends.urls, models=[{"id": MODEL}], tools={"python": python}
    )


@pytest.fixture(scope="module")
async def running(python_settings: Settings) -> AsyncIterator[RunningGateway]:
    async with running_gateway(python_settings) as gateway:
        yield gateway


@pytest.fixture
async def sdk(
    running: RunningGateway, python_settings: Settings
) -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key=running.key, max_retries=0, timeout=60
    )
    async with client as opened:
        yield opened


async def ask(
    sdk: openai.AsyncOpenAI, steps: str, container: Any = None, **fields: Any
) -> Response:
    tool: Any = {"type": "code_interpreter", "container": container or AUTO}
    response: Response = await sdk.responses.create(
        model=MODEL,
        input=f"[[sim steps={steps}]]",
        tools=[tool],
        **{"include": [OUTPUTS], **fields},
    )
    return response


def calls(response: Response) -> list[Any]:
    return [item for item in response.output if item.type == "code_interpreter_call"]


async def test_names_and_files_go_on_along_a_chain(sdk: openai.AsyncOpenAI) -> None:
    first = await ask(sdk, "python x = 41\\nopen('a.txt', 'w').write('hi'); python x + 1; quote")
    one, two = calls(first)
    assert first.output_text == "42"
    assert one.container_id == two.container_id
    assert (one.status, one.code) == ("completed", "x = 41\nopen('a.txt', 'w').write('hi')")
    assert [output.logs for output in two.outputs] == ["42\n"]
    (file,) = [each async for each in sdk.containers.files.list(one.container_id)]
    assert (file.path, file.source) == ("/mnt/data/a.txt", "assistant")
    content = await sdk.containers.files.content.retrieve(file.id, container_id=one.container_id)
    assert content.content == b"hi"
    second = await ask(
        sdk, "python print(x, open('a.txt').read()); quote", previous_response_id=first.id
    )
    assert second.output_text == "41 hi"
    assert calls(second)[0].container_id == one.container_id
    third = await ask(sdk, "python print(x); quote")
    assert "NameError" in third.output_text
    assert calls(third)[0].container_id != one.container_id


@pytest.mark.slow
async def test_files_of_the_request_and_a_container_by_its_id(sdk: openai.AsyncOpenAI) -> None:
    file = await sdk.files.create(file=("in.csv", b"1,2,3"), purpose="user_data")
    steps = "python print(open('/mnt/data/in.csv').read()); quote"
    assert (await ask(sdk, steps, {**AUTO, "file_ids": [file.id]})).output_text == "1,2,3"
    made = await sdk.containers.create(name="mine", file_ids=[file.id])
    named = await ask(sdk, steps, made.id)
    assert named.output_text == "1,2,3"
    assert calls(named)[0].container_id == made.id
    added = await sdk.containers.files.create(made.id, file=("more.txt", b"more"))
    assert (
        await ask(sdk, "python open('more.txt').read(); quote", made.id)
    ).output_text == "'more'"
    await sdk.containers.files.delete(added.id, container_id=made.id)
    gone = await ask(sdk, "python open('more.txt').read(); quote", made.id)
    assert "FileNotFoundError" in calls(gone)[0].outputs[0].logs


@pytest.mark.slow
async def test_events_come_in_their_order(sdk: openai.AsyncOpenAI) -> None:
    seen: list[str] = []
    code = ""
    async with sdk.responses.stream(
        model=MODEL,
        input="[[sim steps=python print(6 * 7); quote]]",
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
    ) as stream:
        async for event in stream:
            if "code_interpreter" in event.type:
                seen.append(event.type.removeprefix("response.code_interpreter_call"))
            if event.type == "response.code_interpreter_call_code.delta":
                code += event.delta
        response = await stream.get_final_response()
    assert code == "print(6 * 7)"
    assert list(dict.fromkeys(seen)) == [
        ".in_progress",
        "_code.delta",
        "_code.done",
        ".interpreting",
        ".completed",
    ]
    (call,) = calls(response)
    assert call.outputs is None, "they were not asked for"
    assert response.output_text == "42"


@pytest.mark.parametrize(
    ("steps", "status", "told"),
    [
        ("python 1 / 0; quote", "completed", "ZeroDivisionError"),
        ("python while True: pass; quote", "failed", "interrupted after 1 seconds"),
        ("python import os\\nos._exit(1); quote", "failed", "container ended"),
    ],
)
async def test_failures_are_told_and_the_response_goes_on(
    steps: str, status: str, told: str, sdk: openai.AsyncOpenAI
) -> None:
    response = await ask(sdk, steps)
    assert response.status == "completed"
    assert calls(response)[0].status == status
    assert told in response.output_text


@pytest.mark.parametrize(
    ("container", "status", "code"),
    [
        ("cntr_" + "0" * 32, 404, "container_not_found"),
        ("elsewhere", 404, "container_not_found"),
        ({**AUTO, "file_ids": ["file-" + "0" * 32]}, 404, None),
        ({**AUTO, "memory_limit": "64g"}, 400, "unsupported_value"),
    ],
)
async def test_containers_that_cannot_be_had(
    container: Any, status: int, code: str | None, sdk: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(sdk, "python 1", container)
    assert (caught.value.status_code, caught.value.code) == (status, code)


@pytest.mark.slow
async def test_another_tenant_cannot_use_a_container(
    sdk: openai.AsyncOpenAI, running: RunningGateway, python_settings: Settings
) -> None:
    made = await sdk.containers.create(name="mine")
    await ask(sdk, "python secret = 1; quote", made.id)
    key = await new_key(python_settings, "globex")
    async with openai.AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key=key, max_retries=0
    ) as stranger:
        with pytest.raises(openai.NotFoundError):
            await ask(stranger, "python print(secret); quote", made.id)


@pytest.mark.slow
async def test_a_cancelled_response_ends_its_code(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.responses.create(
        model=MODEL,
        input="[[sim steps=python x = 1\\nwhile True: pass; quote]]",
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
        background=True,
        stream=True,
    )
    response_id = ""
    async for event in stream:
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.code_interpreter_call.interpreting":
            break
    await stream.close()
    assert (await sdk.responses.cancel(response_id)).status == "cancelled"
    (call,) = calls(await sdk.responses.retrieve(response_id))
    assert call.status == "incomplete"
    after = await ask(sdk, "python print('free'); quote", call.container_id)
    assert after.output_text.endswith("free")
