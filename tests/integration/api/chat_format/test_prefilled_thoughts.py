"""A template whose prompts end within a thought, as those of models that always think do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_server import MODEL, OPENING, called, chatml
from tests.fakes.stream import stream, texts
from tests.integration.api.bodies import WEATHER, create
from tests.integration.api.chat_format.test_chat_controls import ANSWER, STRICT, calls
from tests.integration.api.following import created, id_in, listed, resumed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.api.chat_format.conftest import Chatting

BEGUN = "<think>\n"
OSLO = called("get_weather", '{"location": "Oslo"}')


@pytest.fixture
def thinking(chatting: Chatting) -> Iterator[Chatting]:
    chatting.server.template = partial(chatml, opens_thoughts=True)
    yield chatting
    chatting.server.template = chatml


def thoughts(response: dict[str, Any]) -> list[str]:
    return [one["content"][0]["text"] for one in response["output"] if one["type"] == "reasoning"]


async def test_what_is_said_first_is_a_thought(thinking: Chatting) -> None:
    thinking.server.script = lambda _: f"{BEGUN}They greet.\n</think>\n\nHello!"
    made = await create(thinking.client, model=MODEL, input="Hi")
    assert (thoughts(made), texts(made)) == (["They greet."], ["Hello!"])
    assert thinking.server.prompt().endswith(OPENING + BEGUN)
    assert made["usage"]["input_tokens"] == len(thinking.server.asked[-1]["prompt"])
    said = thinking.server.ids("They greet.\n</think>\n\nHello!<|im_end|>")
    assert made["usage"]["output_tokens"] == len(said)
    assert (await thinking.client.get(f"/v1/responses/{made['id']}")).json() == made


async def test_its_stream_resumes(thinking: Chatting) -> None:
    thinking.server.script = lambda _: f"{BEGUN}They greet.\n</think>\n\nHello!"
    whole = await listed(created(thinking.client, model=MODEL, input="Hi"))
    assert await listed(resumed(thinking.client, id_in(whole), 3)) == whole[4:]
    events = await stream(thinking.client, {"model": MODEL, "input": "Hi"})
    deltas = [one["delta"] for one in events if one["type"].endswith("reasoning_text.delta")]
    assert "".join(deltas) == "They greet."


async def test_a_stream_of_it_that_breaks_off_goes_on(thinking: Chatting) -> None:
    said = f"{BEGUN}They greet.\n</think>\n\nHello!"
    thinking.server.script = lambda _: said
    thinking.server.breaks_after = 5
    made = await create(thinking.client, model=MODEL, input="Hi")
    assert (thoughts(made), texts(made)) == (["They greet."], ["Hello!"])
    first, second = (body["prompt"] for body in thinking.server.asked[-2:])
    size = len(thinking.server.ids(BEGUN)) + 5
    assert second == first + thinking.server.ids(said)[size - 5 : size]


async def test_its_budget_closes_the_thought(thinking: Chatting) -> None:
    thinking.server.script = lambda _: f"{BEGUN}I could go on for ever and ever.\n</think>\n\nNo."
    thinking.server.goes_on = lambda begun: "Yes." if "</think>" in begun else ""
    made = await create(thinking.client, model=MODEL, input="Hi", reasoning={"max_tokens": 12})
    assert texts(made) == ["Yes."]
    assert thinking.server.prompt().endswith(f"{OPENING}{BEGUN}I could go on\n</think>\n\n")


async def test_a_call_that_is_required_is_opened_behind_the_thought(thinking: Chatting) -> None:
    thinking.server.script = lambda _: f"{BEGUN}Hm.\n</think>\n\nI would rather talk."
    thinking.server.goes_on = lambda _: ' {"location": "Oslo"}}\n</tool_call>'
    made = await create(
        thinking.client, model=MODEL, input="Hi", tools=[WEATHER], tool_choice="required"
    )
    assert calls(made) == [("get_weather", '{"location": "Oslo"}')]
    front = '<tool_call>\n{"name": "get_weather", "arguments":'
    said = f"{BEGUN}Hm.\n</think>\n\nI would rather talk."
    assert thinking.server.prompt().endswith(f"{OPENING}{said}{front}")


async def test_what_breaks_a_schema_is_said_again_behind_the_thought(thinking: Chatting) -> None:
    server, thought = thinking.server, f"{BEGUN}Hm.\n</think>\n\n"
    wrong = called("get_weather", '{"location": 7}')
    server.script = lambda _: thought + (wrong if len(server.asked) == 1 else OSLO)
    made = await create(thinking.client, model=MODEL, input="Hi", tools=[STRICT])
    assert calls(made) == [("get_weather", '{"location": "Oslo"}')]
    assert server.prompt().endswith(f"{OPENING}{thought}")
    server.asked.clear()
    server.script = lambda _: thought + ("three" if len(server.asked) == 1 else '{"n": 3}')
    made = await create(thinking.client, model=MODEL, input="Hi", text={"format": ANSWER})
    assert texts(made) == ['{"n": 3}']
    assert thoughts(made) == ["Hm."]
