from __future__ import annotations

import json

import pytest

from gateway.models.harmony.tokenizer import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FINAL_HEADER,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
)
from tests.fakes.cases import each
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.simulated_conversation import (
    TIME,
    WEATHER,
    Said,
    continuation,
    developer,
    formatted,
    parsed,
    prompt_of,
    say,
    scripted_model,
    user,
)
from tests.fakes.wayward_engine.misbehaviour import SYNTAX
from tests.fakes.wayward_engine.scripted_misbehaviour import MARKERS, PROSE, REFUSAL, drifted

FORMAT = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["city", "n"],
}
ATTACKED = [developer(WEATHER, TIME), user("Weather in Rome")]


def _answer(drift: str) -> str:
    return say(formatted(FORMAT), user(f"Rome 7 in Rome [[sim drift={drift}]]")).final


def _attack(name: str) -> list[int]:
    text = f"Weather in Rome [[sim attack={name}]]"
    return continuation(prompt_of(developer(WEATHER, TIME), user(text)))


def _said(name: str) -> Said:
    return parsed(_attack(name))


@pytest.mark.parametrize("drift", ["prose", "truncated", "extra", "refusal"])
def test_a_drifted_answer_is_not_json(drift: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(_answer(drift))


def test_a_drifted_answer_has_values_of_wrong_types() -> None:
    assert json.loads(_answer("types")) == {"city": 4, "n": "7"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{}", []),
        ("[]", {}),
        ('{"a": [null, true, 1.5, "ab"], "b": {}}', {"a": ["yes", "yes", "1.5", 2], "b": []}),
    ],
)
def test_no_value_keeps_its_type(text: str, wrong: object) -> None:
    assert json.loads(drifted(text, "types")) == wrong


def test_arguments_drift_too() -> None:
    said = say(developer(WEATHER), user("Weather in Rome [[sim drift=extra]]"))
    ((name, arguments),) = said.calls
    assert name == "functions.get_weather"
    assert arguments.startswith('{"location": "Rome"}\n')


def test_a_model_that_refuses_neither_calls_nor_answers() -> None:
    said = say(developer(WEATHER), user("Weather in Rome [[sim drift=refusal]]"))
    assert (said.calls, said.final) == ([], REFUSAL)
    assert say(user("Hello [[sim drift=refusal]]")).final == REFUSAL


def test_an_answer_in_words_does_not_drift() -> None:
    assert say(user("Hello [[sim drift=prose]]")).final == say(user("Hello")).final


def test_a_prefilled_body_drifts_as_well() -> None:
    prompt = prompt_of(formatted(FORMAT), user("Hello [[sim drift=prose]]"))
    assert vocabulary().decode(continuation([*prompt, *FINAL_HEADER])) == PROSE


@pytest.mark.parametrize("name", ["now", "nothing", "ns.delete_all"])
def test_any_tool_is_called_declared_or_not(name: str) -> None:
    ((recipient, arguments),) = _said(f"call:{name}").calls
    assert recipient == f"functions.{name}"
    assert json.loads(arguments) == {}


def test_two_calls_are_made_in_one_turn() -> None:
    ids = _attack("twice")
    assert [name for name, _ in parsed(ids).calls] == ["functions.get_weather", "functions.now"]
    assert (ids.count(CALL), ids[-1]) == (1, CALL)
    alone = parsed(continuation(prompt_of(user("Hello [[sim attack=twice]]"))))
    assert [name for name, _ in alone.calls] == ["functions.nothing"] * 2


def test_a_call_is_made_on_the_analysis_channel() -> None:
    call = _said("analysis_call").messages[-1]
    assert (call.channel, call.recipient) == ("analysis", "functions.get_weather")


def test_markers_are_spelled_in_text() -> None:
    ids = _attack("markers")
    ((_, arguments),) = parsed(ids).calls
    assert json.loads(arguments) == {"location": f"Rome{MARKERS}"}
    answer = continuation(prompt_of(user("Hello [[sim attack=markers]]")))
    assert parsed(answer).final.endswith(MARKERS)
    nested = prompt_of(
        formatted({"type": "array", "items": FORMAT}), user("[[sim attack=markers]]")
    )
    assert json.loads(parsed(continuation(nested)).final)[0]["n"] == 1


def test_markers_are_said_in_the_middle_of_text() -> None:
    ids = _attack("marker_ids")
    body = ids[len(ids) - 1 - ids[::-1].index(CONSTRAIN) :]
    assert body[:3] == [CONSTRAIN, CHANNEL, MESSAGE]
    assert all(one < FIRST_SPECIAL for one in body[3:-1])


@pytest.mark.parametrize(("name", "length"), [("header", 5), ("long_header", 300)])
def test_a_header_is_nonsense(name: str, length: int) -> None:
    ids = _attack(name)
    start = ids.index(CHANNEL, ids.index(END))
    message = len(ids) - 1 - ids[::-1].index(MESSAGE)
    assert message - start > length
    assert ids[-1] == RETURN


@each("period", range(1, 9))
def test_a_loop_repeats_so_many_ids(period: int) -> None:
    ids = _attack(f"loop:{period}")[-1001:-1]
    assert ids[period:] == ids[:-period]
    assert all(ids[shift:] != ids[:-shift] for shift in range(1, period))
    thought = _attack(f"think_loop:{period}")[3:1000]
    assert thought[period:] == thought[:-period]


def test_endless_reasoning_never_ends() -> None:
    ids = _attack("endless")
    assert len(ids) > 100_000
    assert END not in ids[:100_000]
    assert all(ids[shift:1000] != ids[: 1000 - shift] for shift in range(3, 9))


def test_a_silent_turn_only_thinks() -> None:
    (message,) = _said("silent").messages
    assert message.channel == "analysis"
    assert _attack("silent")[-1] == RETURN


def test_a_mute_turn_answers_with_nothing() -> None:
    ids = _attack("mute")
    assert ids[-2] == MESSAGE
    assert END in ids[ids.index(MESSAGE) + 2 : -2]


def test_antics_that_are_over_leave_nothing_behind() -> None:
    text = "Weather in Rome [[sim attack=twice drift=prose times=1]]"
    prompt = prompt_of(developer(WEATHER, TIME), user(text))
    meek = scripted_model().continuation(prompt, lambda asked, _: SYNTAX.parse("")).ids
    assert meek == continuation(prompt_of(*ATTACKED))
