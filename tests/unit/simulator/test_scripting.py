from __future__ import annotations

import json

import jsonschema
import pytest

from gateway.simulator.completion_wire import SimulatedError
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.simulated_conversation import (
    TIME,
    WEATHER,
    answered,
    called,
    continuation,
    developer,
    parsed,
    prompt_of,
    returned,
    say,
    system,
    user,
)


def test_it_thinks_longer_with_more_effort() -> None:
    low, medium, high = (
        len(say(system(effort), user("Hello")).texts("analysis")[0])
        for effort in ("low", "medium", "high")
    )
    assert low < medium < high


def test_the_answer_quotes_the_user_and_counts_turns() -> None:
    final = say(user("apples"), answered("ok"), user("pears")).final
    assert "“pears”" in final
    assert "turn 2" in final
    assert "“apples”" in final


def test_it_says_that_it_is_no_model() -> None:
    assert "scripted" in say(user("Hello")).final


def test_it_remembers_the_users_name() -> None:
    history = [user("My name is Ada."), answered("Hello Ada")]
    assert say(*history, user("What is my name?")).final == "Your name is Ada."
    assert "not told" in say(user("What is my name?")).final


def test_it_knows_what_the_user_said_and_how_often() -> None:
    history = [user("apples"), answered("ok")]
    assert say(*history, user("What did I say?")).final == "Before that you said “apples”."
    assert say(*history, user("How many turns is this?")).final.startswith("This is turn 2")


def test_it_calls_the_tool_that_the_user_means() -> None:
    said = say(developer(TIME, WEATHER), user("What is the weather in Rome, in fahrenheit unit?"))
    ((recipient, arguments),) = said.calls
    assert recipient == "functions.get_weather"
    assert json.loads(arguments) == {"location": "Rome", "unit": "fahrenheit"}
    assert said.texts("final") == []


@pytest.mark.parametrize(
    "text", ["Hello", "Do not call get_weather", "get_weather please [[sim call=none]]"]
)
def test_it_calls_nothing_when_nothing_is_asked_of_a_tool(text: str) -> None:
    assert say(developer(WEATHER), user(text)).calls == []


@pytest.mark.parametrize("text", ["Call something", "Find out about it", "[[sim call=now]]"])
def test_it_calls_the_only_tool_when_told_to_do_something(text: str) -> None:
    assert say(developer(TIME), user(text)).calls == [("functions.now", "{}")]


def test_it_calls_nothing_when_no_tool_is_offered() -> None:
    assert say(user("Call get_weather now")).calls == []


def test_it_answers_with_the_tools_output() -> None:
    said = say(
        developer(WEATHER),
        user("Weather in Rome"),
        called("get_weather", "{}"),
        returned("get_weather", '{"sky": "grün ☀️"}'),
    )
    assert said.calls == []
    assert '{"sky": "grün ☀️"}' in said.final


def test_it_makes_several_calls_one_after_the_other() -> None:
    history = [developer(TIME, WEATHER), user("Use now, then get_weather in Oslo")]
    assert [name for name, _ in say(*history).calls] == ["functions.now"]
    history += [called("now", "{}"), returned("now", "12:00")]
    assert [name for name, _ in say(*history).calls] == ["functions.get_weather"]
    history += [called("get_weather", "{}"), returned("get_weather", "rain")]
    final = say(*history).final
    assert "12:00" in final
    assert "rain" in final


@pytest.mark.parametrize("text", ["call now twice", "call now 2 times", "[[sim call=now calls=2]]"])
def test_it_calls_one_tool_as_often_as_asked(text: str) -> None:
    history = [developer(TIME), user(text)]
    for _ in range(2):
        assert [name for name, _ in say(*history).calls] == ["functions.now"]
        history += [called("now", "{}"), returned("now", "12:00")]
    assert say(*history).calls == []


def test_it_can_be_asked_later_what_a_tool_said() -> None:
    history = [
        developer(TIME),
        user("call now"),
        called("now", "{}"),
        returned("now", "12:34"),
        answered("It is late"),
    ]
    assert say(*history, user("What did the tool say?")).final == "The tool said: 12:34"


def test_a_preamble_comes_before_the_call_when_asked_for() -> None:
    said = say(developer(TIME), user("call now, with a preamble"))
    assert [message.recipient for message in said.messages] == [None, None, "functions.now"]
    assert said.texts("commentary")[0] == "I will call now and tell you what it says."


def test_a_response_format_is_answered_with_valid_json() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 18},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2},
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
        "required": ["name", "age", "tags", "next"],
        "additionalProperties": False,
    }
    text = f"Be nice.\n\n# Response Formats\n\n## person\n\n// Someone {{\n{json.dumps(schema)}"
    answer = json.loads(say(developer(instructions=text), user("Who is 7 years old?")).final)
    jsonschema.validate(answer, schema)


def test_answers_hold_characters_of_many_bytes_when_asked() -> None:
    final = say(user("Unicode please")).final
    assert all(
        piece in final for piece in ("👩‍👩‍👧", "東京", "नमस्ते", "e\N{COMBINING ACUTE ACCENT}")
    )


def test_directives_set_the_answer_and_do_not_show() -> None:
    assert say(user("[[sim think=none say=Hello, wörld]]")).final == "Hello, wörld"
    assert "[[" not in say(user("apples [[sim tokens_per_s=5]] pears")).final


def test_directives_set_arguments() -> None:
    text = 'call now [[sim drift=extra]] [[sim arguments={"a": ["]"], "b": "x=1"}]]'
    ((_, arguments),) = say(developer(TIME), user(text)).calls
    assert arguments.startswith('{"a": ["]"], "b": "x=1"}\n')
    ((_, arguments),) = say(developer(TIME), user("call now [[sim arguments=not JSON]]")).calls
    assert arguments == "not JSON"
    text = "call now [[sim drift=types]] [[sim arguments=not JSON]]"
    assert say(developer(TIME), user(text)).calls[0][1] == "8"


def test_directives_set_lengths_exactly() -> None:
    ids = continuation(prompt_of(user("[[sim think=20 tokens=300]]")))
    said = parsed(ids)
    assert len(vocabulary().encode(said.final)) == 300
    assert len(vocabulary().encode(said.texts("analysis")[0])) == 20
    assert say(user("[[sim think=none]]")).texts("analysis") == []


def test_a_directive_that_means_nothing_is_refused() -> None:
    with pytest.raises(SimulatedError, match="dye_after=3") as caught:
        say(user("[[sim dye_after=3]]"))
    assert caught.value.status == 400
