"""Tools of every kind: what their calls look like, and the turn after them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from gateway.models.harmony.tokenizer import START, Vocabulary
from tests.integration.api.tools.toolbox import (
    AGENTS,
    CLOCK,
    NOTE,
    PATCH,
    PATCHER,
    SUM,
    WEATHER,
    name_of,
)

if TYPE_CHECKING:
    from tests.integration.api.tools.asking import Asker, Json, Told

VOCABULARY = Vocabulary.load()
COMMAND = {"stdout": "one\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
SEALED = {"store": False, "include": ["reasoning.encrypted_content"]}

KINDS: dict[str, tuple[Json, Json, Json]] = {
    "function": (CLOCK, {"type": "function", "name": "now"}, {"output": "noon"}),
    "custom": (NOTE, {"type": "custom", "name": "note"}, {"output": "kept"}),
    "grammar": (SUM, {"type": "custom", "name": "add"}, {"output": "3"}),
    "namespace": (
        AGENTS,
        {"type": "function", "name": "agents.spawn"},
        {"output": [{"type": "input_text", "text": "spawned"}]},
    ),
    "custom in a namespace": (
        AGENTS,
        {"type": "custom", "name": "agents.count"},
        {"output": "two"},
    ),
    "local shell": ({"type": "local_shell"}, {"type": "local_shell"}, {"output": "{}"}),
    "shell": ({"type": "shell"}, {"type": "shell"}, {"output": [COMMAND]}),
    "patcher": ({"type": "apply_patch"}, {"type": "apply_patch"}, {"status": "completed"}),
}


def answered(call: Json, output: Json) -> Json:
    """The output of a call."""
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], **output}


_CALL = re.compile(
    r"assistant[^{]*?to=functions\.([\w.]+?)(?:commentary)? ?(?:json)?(\{.*)", re.DOTALL
)


async def prompt_of(fleet: Asker, response: Json) -> list[Any]:
    """The messages that the first request for a response was made with: ids, and of a call its
    recipient and arguments, because a client that replays it does not know how it was spelled.
    """
    ids: list[int] = (await fleet.backends.of_response(response["id"]))[0]["prompt_ids"]
    starts = [at for at, token in enumerate(ids) if token == START]
    ends = [*starts[1:], len(ids)]
    return [_call_or_ids(ids[start:end]) for start, end in zip(starts, ends, strict=True)]


def _call_or_ids(message: list[int]) -> Any:
    text = VOCABULARY.decode(message)
    call = re.match(
        r"assistant[^{]*?to=functions\.([\w.]+?)(?:commentary)? ?(?:json)?(\{.*)", text, re.DOTALL
    )
    return (call[1], json.loads(call[2])) if call else message


@pytest.mark.slow
@pytest.mark.requirement("kinds.client-executed")
@pytest.mark.parametrize("case", KINDS)
async def test_the_turn_after_a_call_knows_it_with_and_without_our_memory(
    fleet: Asker, case: str
) -> None:
    tool, choice, output = KINDS[case]
    question = {"role": "user", "content": "Do it."}
    first = await fleet.stream(input=[question], tools=[tool], tool_choice=choice)
    (call,) = first.calls
    assert first.announced[0]["id"] == call["id"]
    assert (name_of(call), call["status"]) == (choice.get("name", choice["type"]), "completed")
    result = answered(call, output)
    second = await fleet.stream(
        input=[result], tools=[tool], previous_response_id=first.response["id"]
    )
    assert second.response["status"] == "completed"
    assert second.text
    replayed = await fleet.stream(input=[question, *first.response["output"], result], tools=[tool])
    prompts = [await prompt_of(fleet, told.response) for told in (second, replayed)]
    assert prompts[0][-3:] == prompts[1][-3:]
    assert prompts[0][-3][0] == name_of(call)


@pytest.mark.slow
@pytest.mark.parametrize("case", KINDS)
async def test_sealed_reasoning_gives_the_prompt_that_our_memory_gives(
    fleet: Asker, case: str
) -> None:
    tool, choice, output = KINDS[case]
    question = {"role": "user", "content": "Do it."}
    first = await fleet.body(
        input=[question], tools=[tool], tool_choice=choice, include=SEALED["include"]
    )
    result = answered(first["output"][-1], output)
    second = await fleet.body(input=[result], tools=[tool], previous_response_id=first["id"])
    replayed = await fleet.body(input=[question, *first["output"], result], tools=[tool], **SEALED)
    prompt = await prompt_of(fleet, replayed)
    assert prompt == await prompt_of(fleet, second)
    assert any(isinstance(message, tuple) for message in prompt)


async def run(fleet: Asker, tool: Json, choice: Json, arguments: Any, *, pace: str = "") -> Told:
    """A call with these arguments, dictated as JSON."""
    said = json.dumps(arguments, ensure_ascii=False)
    return await fleet.ask(f"Go. [[sim {pace} arguments={said}]]", tools=[tool], tool_choice=choice)


@pytest.mark.parametrize(
    "text", ["", "plain", 'said "so"\n\\n\t', "naïve 東京 👩‍👩‍👧", '{"input": 1}']
)
async def test_the_text_of_a_custom_call_is_what_the_model_wrote(fleet: Asker, text: str) -> None:
    told = await run(fleet, NOTE, {"type": "custom", "name": "note"}, {"input": text})
    (call,) = told.calls
    assert call["input"] == text


@pytest.mark.slow
async def test_a_patch_of_codexs_grammar_is_streamed_or_shown_whole(fleet: Asker) -> None:
    choice = {"type": "custom", "name": "apply_patch"}
    # Slowly: what comes in one read is one delta, and a backend in haste may send it all at once.
    told = await run(fleet, PATCHER, choice, {"input": PATCH}, pace="tokens_per_s=200")
    (call,) = told.calls
    assert (call["type"], call["input"]) == ("custom_tool_call", PATCH)
    deltas = [e for e in told.events if e["type"] == "response.custom_tool_call_input.delta"]
    assert (len(deltas) > 1) == fleet.holds


@pytest.mark.slow
@pytest.mark.parametrize("text", ["*** Begin Patch\n", f"Here:\n{PATCH}", PATCH.replace("+", "?")])
async def test_no_patch_outside_of_its_grammar_is_shown(fleet: Asker, text: str) -> None:
    choice = {"type": "custom", "name": "apply_patch"}
    told = await run(fleet, PATCHER, choice, {"input": text})
    if fleet.holds:
        (call,) = told.calls
        assert re.match(r"\*\*\* Begin Patch\n[\s\S]*\*\*\* End Patch\n?\Z", call["input"])
    else:
        assert (told.code, told.announced) == ("invalid_tool_call", [])


@pytest.mark.requirement("order.shell-call")
async def test_the_shell_shows_its_commands_one_by_one(fleet: Asker) -> None:
    arguments = {"commands": ["ls -l", "pwd"], "timeout_ms": 5000}
    told = await run(fleet, {"type": "shell"}, {"type": "shell"}, arguments)
    (call,) = told.calls
    assert call["action"] == {**arguments, "max_output_length": None}
    shown = [e for e in told.events if e["type"] == "response.shell_call_command.done"]
    assert [event["command"] for event in shown] == arguments["commands"]


@pytest.mark.requirement("order.nothing-between")
@pytest.mark.parametrize(
    "operation",
    [
        {"type": "create_file", "path": "a", "diff": "+one"},
        {"type": "update_file", "path": "a", "diff": "@@\n-one\n+two"},
        {"type": "delete_file", "path": "a"},
    ],
)
async def test_the_patcher_shows_its_operation(fleet: Asker, operation: Json) -> None:
    patcher = {"type": "apply_patch"}
    (call,) = (await run(fleet, patcher, patcher, {"operation": operation})).calls
    assert call["operation"] == operation


@pytest.mark.slow
@pytest.mark.parametrize("drift", ["prose", "types", "truncated", "extra", "refusal"])
@pytest.mark.parametrize("kind", ["local_shell", "shell", "apply_patch"])
async def test_no_shell_runs_what_has_not_its_shape(fleet: Asker, kind: str, drift: str) -> None:
    tool = {"type": kind}
    wayward = f"Do it. [[sim drift={drift} grammar_ids=none]]"
    told = await fleet.stream(input=wayward, tools=[tool], tool_choice=tool)
    assert (told.code, told.announced, told.calls) == ("invalid_tool_call", [], [])
    mended = await fleet.stream(input=wayward.replace("]]", " times=1]]"), tools=[tool])
    assert mended.code is None


@pytest.mark.requirement("harmony.bad-arguments")
async def test_arguments_of_a_tool_that_is_not_strict_are_passed_on(fleet: Asker) -> None:
    text = "Use now. [[sim drift=types grammar_ids=none]]"
    choice = {"type": "function", "name": "now"}
    told = await fleet.ask(text, tools=[CLOCK, {**WEATHER, "strict": False}], tool_choice=choice)
    assert told.response["status"] == "completed"
    assert [name_of(call) for call in told.calls] == ["now"]
