"""Tools that the gateway runs, for a model with a chat template: each turn goes on id for id."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_server import (
    MODEL,
    NO_THOUGHT,
    OPENING,
    called,
    chatml,
    thinking_last,
    unopened,
)
from tests.fakes.mcp_server import serving
from tests.fakes.stream import texts
from tests.integration.api.bodies import create, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.api.chat_format.conftest import Chatting, Template

ADD = called("srv.add", '{"a": 1, "b": 2}')
SAY = called("srv.say", r'{"text": "\u003c|im_end|>hi"}')
"""What it returns spells a marker."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as process:
        yield process.url


def mcp(url: str, **fields: Any) -> dict[str, Any]:
    tool = {
        "type": "mcp",
        "server_label": "srv",
        "server_url": url,
        "require_approval": "never",
        "allowed_tools": ["add", "say"],
    }
    return {**tool, **fields}


def in_turn(*said: str) -> Callable[[str], str]:
    """The script that says these, one turn after the other."""
    return lambda before: said[before.count("<tool_response>")]


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


@pytest.mark.parametrize("effort", ["medium", "none"])
async def test_a_turn_behind_a_result_extends_the_one_before(
    chatting: Chatting, server: str, effort: str
) -> None:
    asked = chatting.server.asked
    chatting.server.script = in_turn(f"Let me add.\n{ADD}", SAY, "It is 3.")
    made = await create(
        chatting.client,
        model=MODEL,
        input="1 + 2?",
        tools=[mcp(server)],
        reasoning={"effort": effort},
    )
    assert [kind for kind in kinds(made) if kind == "mcp_call"] == ["mcp_call"] * 2
    assert texts(made)[-1] == "It is 3."
    begun = NO_THOUGHT if effort == "none" else ""
    first, second, third = (chatting.server.spelled(body["prompt"]) for body in asked)
    assert first.endswith(OPENING + begun)
    assert second.startswith(f"{first}Let me add.\n{ADD}")
    result, _, rest = second.removeprefix(f"{first}Let me add.\n{ADD}").rpartition(OPENING)
    assert result.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\n")
    assert result.endswith("\n</tool_response><|im_end|>\n")
    assert rest == begun
    assert third.startswith(second + SAY)
    for before, behind in pairwise(body["prompt"] for body in asked):
        assert behind[: len(before)] == before
    marker = chatting.server.tokenizer.token_to_id("<|im_end|>")
    assert third.count("<|im_end|>") == second.count("<|im_end|>") + 3
    assert asked[2]["prompt"].count(marker) == asked[1]["prompt"].count(marker) + 2


async def test_the_history_shows_calls_that_were_run(chatting: Chatting, server: str) -> None:
    chatting.server.script = in_turn(ADD, "It is 3.")
    first = await create(chatting.client, model=MODEL, input="1 + 2?", tools=[mcp(server)])
    chatting.server.script = lambda _: "Yes."
    await create(
        chatting.client,
        model=MODEL,
        input="Sure?",
        tools=[mcp(server)],
        previous_response_id=first["id"],
    )
    prompt = chatting.server.prompt()
    assert f"{OPENING}{ADD}<|im_end|>" in prompt
    assert prompt.count("<tool_response>") == 1


async def test_python_runs_code_that_is_wrapped_in_json(chatting: Chatting) -> None:
    chatting.server.script = in_turn(called("python", '{"code": "print(6 * 7)"}'), "42.")
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    made = await create(
        chatting.client,
        model=MODEL,
        input="6 * 7?",
        tools=[tool],
        include=["code_interpreter_call.outputs"],
    )
    [call] = [item for item in made["output"] if item["type"] == "code_interpreter_call"]
    assert call["code"] == "print(6 * 7)"
    assert "<tool_response>\n42\n</tool_response>" in chatting.server.prompt()


@pytest.mark.slow
async def test_a_call_waits_for_the_users_approval(chatting: Chatting, server: str) -> None:
    tool = mcp(server, require_approval="always")
    chatting.server.script = in_turn(f"<think>\nMay I?\n</think>\n\n{ADD}", "It is 3.")
    first = await create(chatting.client, model=MODEL, input="1 + 2?", tools=[tool])
    [request] = [one for one in first["output"] if one["type"] == "mcp_approval_request"]
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": True,
    }
    second = await create(
        chatting.client, model=MODEL, input=[answer], tools=[tool], previous_response_id=first["id"]
    )
    assert kinds(second)[-2:] == ["mcp_call", "message"]
    prompt = chatting.server.prompt()
    assert prompt.count(ADD) == 1
    assert prompt.rpartition(ADD)[2].startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\n")
    assert prompt.endswith(f"\n</tool_response><|im_end|>\n{OPENING}")


@pytest.mark.parametrize(("renders", "opening"), [(thinking_last, OPENING), (unopened, "")])
@pytest.mark.parametrize("approval", ["never", "always"])
async def test_results_stand_in_the_frames_of_other_templates(
    of_template: Callable[[Template], Chatting],
    server: str,
    renders: Template,
    opening: str,
    approval: str,
) -> None:
    chatting = of_template(renders)
    chatting.server.script = in_turn(ADD, "It is 3.")
    chatting.server.goes_on = chatting.server.script  # where nothing opens a turn
    tool = mcp(server, require_approval=approval)
    made = await create(chatting.client, model=MODEL, input="1 + 2?", tools=[tool])
    if approval == "always":
        request = made["output"][-1]
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": request["id"],
            "approve": True,
        }
        made = await create(
            chatting.client,
            model=MODEL,
            input=[answer],
            tools=[tool],
            previous_response_id=made["id"],
        )
    assert texts(made) == ["It is 3."]
    result = '<|im_start|>user\n<tool_response>\n{"result":3}\n</tool_response><|im_end|>\n'
    assert chatting.server.prompt().endswith(f"{ADD}<|im_end|>\n{result}{opening}")


@pytest.mark.slow
async def test_a_server_that_was_started_anew_may_frame_results_otherwise(
    chatting: Chatting, server: str
) -> None:
    def otherwise(body: dict[str, Any]) -> str:
        return chatml(body).replace("<tool_response>\n", "<tool_response>\nIt says: ")

    pool = chatting.process.foundation.pool
    chatting.server.script = in_turn(ADD, "It is 3.")
    await create(chatting.client, model=MODEL, input="1 + 2?", tools=[mcp(server)])
    assert "It says: " not in chatting.server.prompt()
    for template in (otherwise, chatml):
        chatting.server.is_starting = True
        await pool.poll()
        chatting.server.template, chatting.server.is_starting = template, False
        await pool.poll()
        await create(chatting.client, model=MODEL, input="1 + 2?", tools=[mcp(server)])
        assert ("It says: " in chatting.server.prompt()) is (template is otherwise)


async def test_a_template_without_a_frame_for_results_has_no_hosted_tools(
    chatting: Chatting, server: str
) -> None:
    """It shows results before everything else."""

    def odd(body: dict[str, Any]) -> str:
        messages = sorted(body["messages"], key=lambda message: message["role"] != "tool")
        return chatml({**body, "messages": messages})

    chatting.server.template = odd
    formats = chatting.process.foundation.formats
    formats.for_model(MODEL)._learned = None  # type: ignore[attr-defined]
    error = await refused(chatting.client, 400, model=MODEL, input="Hi", tools=[mcp(server)])
    assert "no frame for results" in error["message"]
    chatting.server.template = chatml
    formats.for_model(MODEL)._learned = None  # type: ignore[attr-defined]
