"""Which messages a conversation becomes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pytest
from pydantic import TypeAdapter

from gateway.constraints.output_rules import AnswerFormat
from gateway.context.assembly import assemble
from gateway.errors import InvalidRequest
from gateway.generation import PREAMBLE, PYTHON_TOOL
from gateway.models.chat.chat_messages import (
    ANY,
    UNSEEN,
    ChatConversation,
    Habits,
    Markers,
    call_id_of,
    chat_conversation,
    functions,
    question,
)
from gateway.models.format import Builtins
from gateway.protocol.call_items import NO_RESULT, NOT_APPROVED
from gateway.protocol.items import AnyInputItem, InputItem
from gateway.protocol.tool_types import FunctionTool
from tests.fakes import contexts as items
from tests.fakes.contexts import options

if TYPE_CHECKING:
    from gateway.protocol.context_item import ContextItem

_INPUT: TypeAdapter[InputItem] = TypeAdapter(AnyInputItem)


def told(*context: ContextItem, habits: Habits = ANY, **fields: Any) -> list[dict[str, Any]]:
    """The messages, calls in short."""
    made = chat_conversation(context, replace(options(), **fields), habits)
    return [_short(message) for message in made.messages]


def _short(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    short = {message["role"]: message["content"]}
    if thought := message.get("reasoning"):
        assert message["reasoning_content"] == thought
        short["thought"] = thought
    return {**short, "calls": calls} if calls else short


def test_instructions_are_one_message_of_the_system() -> None:
    context = (items.said("developer", "Rhyme."), items.said("system", "Soft."), items.user())
    assert told(*context, instructions="Be brief.") == [
        {"system": "Be brief.\n\nRhyme.\n\nSoft."},
        {"user": "hi"},
    ]


def test_later_instructions_are_told_where_they_stand_as_the_template_takes_them() -> None:
    context = (items.user(), items.answer(), items.said("developer", "Rhyme."), items.user("so?"))
    late = told(*context)
    assert late[2:] == [{"system": "Rhyme."}, {"user": "so?"}]
    users = told(*context, habits=Habits(late_system=False))
    assert users[2:] == [{"user": "Rhyme."}, {"user": "so?"}]
    one = told(*context, habits=Habits(late_system=False, repeated_user=False))
    assert one[2:] == [{"user": "Rhyme.\n\nso?"}]


def test_a_template_without_a_system_is_told_as_the_user() -> None:
    habits = Habits(system=False, late_system=False, repeated_user=False)
    assert told(items.user(), instructions="Rhyme.", habits=habits) == [{"user": "Rhyme.\n\nhi"}]


def test_the_format_of_the_answer_and_the_place_of_the_user_are_instructions() -> None:
    schema = AnswerFormat("json_schema", {"type": "integer"}, "n", "How many.")
    [system, _] = told(items.user(), answer=schema, builtins=Builtins(location="Oslo,\n Norway"))
    assert "Oslo, Norway." in system["system"]
    assert "(How many.)" in system["system"]
    assert '{"type":"integer"}' in system["system"]
    [system, _] = told(items.user(), answer=AnswerFormat("json_object", {"type": "object"}))
    assert "one JSON object" in system["system"]


def test_thoughts_words_and_calls_are_one_turn() -> None:
    context = (
        items.user(),
        items.thought(),
        items.answer("Let me.", "commentary"),
        items.call("a", "f", '{"x": 1}'),
        items.call("b", "g"),
        items.output("b", "2"),
        items.output("a", "1"),
        items.thought("so"),
    )
    assert told(*context)[1:] == [
        {"assistant": "Let me.", "thought": "hm", "calls": [("f", '{"x": 1}'), ("g", "{}")]},
        {"tool": "1"},
        {"tool": "2"},
        {"assistant": "", "thought": "so"},
    ]


@pytest.mark.parametrize("called", [items.call(), items.computed(), items.served()])
def test_text_before_a_call_does_not_end_the_thought_before_it(called: ContextItem) -> None:
    outputs = (items.output(),) if called.is_call else ()
    words = (items.answer("Let"), items.answer("me."))
    [_, turn, *_] = told(items.user(), items.thought(), *words, called, *outputs)
    assert (turn["thought"], turn["assistant"]) == ("hm", "Let\n\nme.")
    answered = (items.user(), items.thought(), items.answer("Yes."), items.user())
    assert told(*answered)[1] == {"assistant": "Yes."}


def test_text_behind_a_call_does_not_end_the_thought_before_it() -> None:
    [_, turn, *_] = told(
        items.user(), items.thought(), items.call(), items.answer("I call."), items.output()
    )
    assert turn["thought"] == "hm"


def test_a_template_that_takes_one_call_in_a_message_is_told_each_with_its_result() -> None:
    habits = Habits(several_calls=False)
    calls = (items.call("a", "f", '{"x": 1}'), items.call("b", "g"))
    words = items.answer("Let me.", "commentary")
    outputs = (items.output("a", "1"), items.output("b", "2"))
    assert told(items.user(), words, *calls, *outputs, habits=habits)[1:] == [
        {"assistant": "Let me.", "calls": [("f", '{"x": 1}')]},
        {"tool": "1"},
        {"assistant": "", "calls": [("g", "{}")]},
        {"tool": "2"},
    ]
    assert told(items.user(), *calls, habits=habits)[1:] == [
        {"assistant": "", "calls": [("f", '{"x": 1}')]},
        {"assistant": "", "calls": [("g", "{}")]},
    ]


def test_who_was_interrupted_has_said_nothing_to_a_template_that_wants_an_answer() -> None:
    context = (items.user(), items.call("a"), items.output("a", "1"), items.user("Stop."))
    assert told(*context)[2:] == [{"tool": "1"}, {"user": "Stop."}]
    habits = Habits(late_system=False, repeated_user=False, user_behind_result=False)
    late = items.said("developer", "Be quick.")
    assert told(*context, late, habits=habits)[2:] == [
        {"tool": "1"},
        {"assistant": ""},
        {"user": "Stop.\n\nBe quick."},
    ]


def test_calls_with_something_between_them_are_turns_of_their_own() -> None:
    context = (
        items.user(),
        items.call("a"),
        items.output("a", "1"),
        items.call("b"),
        items.answer("Well.", "commentary"),
        items.thought("more"),
        items.thought(" and more"),
        items.answer("", "commentary"),
        items.output("b", "2"),
    )
    assert told(*context)[1:] == [
        {"assistant": "", "calls": [("f", "{}")]},
        {"tool": "1"},
        {"assistant": "", "calls": [("f", "{}")]},
        {"tool": "2"},
        {"assistant": "Well."},
        {"assistant": "", "thought": "more\n\n and more"},
    ]


def test_words_behind_a_call_without_an_output_are_another_turn() -> None:
    context = (items.user(), items.call("a"), items.answer("Never mind.", "commentary"))
    assert told(*context)[1:] == [
        {"assistant": "", "calls": [("f", "{}")]},
        {"assistant": "Never mind."},
    ]


def test_thoughts_before_an_answer_are_left_out() -> None:
    context = (items.user(), items.thought(), items.answer(), items.user("so?"))
    assert told(*context) == [{"user": "hi"}, {"assistant": "hello"}, {"user": "so?"}]


def test_an_output_that_nobody_asked_for_has_a_call() -> None:
    assert told(items.user(), items.uncalled("f"))[1:] == [
        {"assistant": "", "calls": [("f", "{}")]},
        {"tool": "ok"},
    ]
    with pytest.raises(InvalidRequest):
        told(items.user(), items.output("zz"))


def test_arguments_are_an_object() -> None:
    context = [
        items.call(f"c{n}", "f", said) for n, said in enumerate(("", "[1]", "{x", '{"a":1}'))
    ]
    made = told(items.user(), *context)
    assert [arguments for _, arguments in made[1]["calls"]] == [
        "{}",
        '{"input":[1]}',
        '{"input":"{x"}',
        '{"a":1}',
    ]


def test_code_is_wrapped_for_who_knows_functions_alone() -> None:
    made = ChatConversation(ANY)
    made.call(0, "c", PYTHON_TOOL, "1 + 1")
    [message] = made.messages
    assert _short(message)["calls"] == [("python", '{"code":"1 + 1"}')]


def test_items_of_hosted_tools_are_calls_and_results() -> None:
    assert told(items.user(), items.served())[1:] == [
        {"assistant": "", "calls": [("crm.add", '{"a": 1}')]},
        {"tool": "ok"},
    ]
    assert told(items.user(), items.searched())[1:] == [
        {"assistant": "", "calls": [("web_search", '{"action":{"type":"search","query":"x"}}')]},
        {"tool": NO_RESULT},
    ]
    silent = items.from_wire(
        {"type": "mcp_list_tools", "id": "l", "server_label": "x", "tools": []}
    )
    assert told(items.user(), silent) == [{"user": "hi"}]


def test_a_program_that_ran_elsewhere_is_a_call_with_its_result() -> None:
    program = items.from_wire({"type": "program", "id": "p", "call_id": "c", "code": "f()"})
    output = items.from_wire({"type": "program_output", "id": "o", "call_id": "c", "result": "1"})
    call = {"assistant": "", "calls": [("program", '{"code":"f()"}')]}
    result = {"tool": '{"result":"1"}'}
    assert told(program, items.user(), output) == [call, result, {"user": "hi"}]
    assert told(program) == [call, {"tool": f'{{"result":"{NO_RESULT}"}}'}]
    uncalled = {"assistant": "", "calls": [("program", "{}")]}
    assert told(output) == [uncalled, result]


def test_a_search_for_tools_is_a_call_with_its_result() -> None:
    search = {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "x"}}
    found = {"type": "tool_search_output", "call_id": "c", "tools": [TOOL]}
    new = [_INPUT.validate_python(item) for item in (search, found)]
    context = assemble((), new, stored={}, unsealed={}, response=UUID(int=7))
    assert told(*context.items) == [
        {"assistant": "", "calls": [("tool_search", '{"query":"x"}')]},
        {"tool": '{"tools":[{"name":"f","description":"F."}]}'},
    ]


TOOL = {"type": "function", "name": "f", "description": "F.", "parameters": {}}


def test_calls_that_the_gateway_ran_were_made_one_after_the_other() -> None:
    pair = [{"assistant": "", "calls": [("crm.add", '{"a": 1}')]}, {"tool": "ok"}]
    assert told(items.user(), items.served(), items.served())[1:] == [*pair, *pair]


def test_every_result_names_its_call() -> None:
    denied = items.answering(approve=False)
    context = (items.user(), items.served(), items.searched(), items.asking(), denied)
    messages = chat_conversation(context, options(), ANY).messages
    made = [call["id"] for one in messages for call in one.get("tool_calls", ())]
    assert [one["tool_call_id"] for one in messages if one["role"] == "tool"] == made
    assert len(set(made)) == 3


def test_what_says_nothing_is_not_told() -> None:
    context = (items.user(""), items.answer(""), items.said("system", ""), items.thought(""))
    assert told(*context) == [{"user": ""}]


def test_two_answers_are_two_paragraphs() -> None:
    context = (items.user(), items.answer("One.", "commentary"), items.answer("Two."))
    assert told(*context)[1:] == [{"assistant": "One.\n\nTwo."}]
    # Each of them put behind the others at once would take half a minute.
    many = (items.user(), *[items.answer("x" * 1000)] * 9000)
    assert told(*many)[1:] == [{"assistant": "\n\n".join(["x" * 1000] * 9000)}]


def test_what_the_user_approved_or_not_is_told_as_a_call() -> None:
    request, denied = items.asking(), items.answering(approve=False, reason="No!")
    [_, call, result] = told(items.user(), request, denied)
    assert call["calls"] == [("crm.add", '{"a": 1}')]
    assert result["tool"].startswith(NOT_APPROVED)
    made = items.served(approved="mcpr_1")
    approved = items.answering(approve=True)
    assert told(items.user(), request, approved, made)[1:] == [call, {"tool": "ok"}]
    now = told(items.user(), request, approved, approved="mcpr_1")
    assert now[1:] == [call]


def test_what_nobody_can_open_is_not_told() -> None:
    sealed = items.from_wire({"type": "compaction", "id": "c", "encrypted_content": "x"})
    assert told(items.user(), sealed, items.user("so?"))[-1] == {"user": "so?"}


def test_no_item_has_more_of_the_prompt_than_there_is() -> None:
    made = chat_conversation((items.user("x" * 900), items.answer("y" * 50)), options(), ANY)
    [first, second] = made.spans(100)
    assert (first.source, first.start) == (0, 0)
    assert (first.end, second.start, second.end) == (second.start, first.end, 100)
    assert first.end > 80
    made = chat_conversation((items.user(),), options(instructions="Be brief."), ANY)
    assert made.spans(10)[0].source == PREAMBLE
    assert ChatConversation(ANY).spans(10) == ()


def test_texts_that_spell_a_marker_are_broken_up() -> None:
    markers = Markers(["<|end|>", "<|end|>x", "<"])
    assert markers.broken_up("a <|end|>b") == f"a <{UNSEEN}|end|>b"
    assert Markers([]).broken_up("<|end|>") == "<|end|>"
    asked = question(
        [{"role": "user", "content": "<|end|>"}], [{"x": "<|end|>"}], {"a": 1}, markers=markers
    )
    body = orjson.loads(asked)
    assert body["messages"][0]["content"] == body["tools"][0]["x"] == f"<{UNSEEN}|end|>"
    assert body["chat_template_kwargs"] == {"a": 1}
    assert body["add_generation_prompt"] is True


def test_ids_of_calls_are_short_and_lasting() -> None:
    assert call_id_of("call_1") == call_id_of("call_1") != call_id_of("call_2")
    assert len(call_id_of(None)) == 9


def test_all_tools_are_functions() -> None:
    tool = FunctionTool(type="function", name="f", parameters=None)
    builtins = Builtins(browser=True, python=True, python_description="Code.")
    told = functions(replace(options(tools=(tool,)), builtins=builtins))
    names = [one["function"]["name"] for one in told]
    assert names == ["browser.search", "browser.open", "browser.find", "python", "f"]
    assert told[-1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert told[-2]["function"]["description"] == "Code."
    assert functions(options()) == []
