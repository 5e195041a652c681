from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.models.harmony.harmony_format import turn_ids
from gateway.models.harmony.tokenizer import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FINAL_HEADER,
    FIRST_SPECIAL,
    MESSAGE,
    OPENING,
    RETURN,
    START,
    VOCABULARY_SIZE,
)
from tests.fakes.cases import each
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.simulated_conversation import (
    TIME,
    WEATHER,
    answered,
    called,
    continuation,
    developer,
    formatted,
    parsed,
    prompt_of,
    returned,
    scripted_model,
    system,
    thought,
    user,
)
from tests.fakes.wayward_engine import corpus
from tests.fakes.wayward_engine.scripted_misbehaviour import WaywardModel

POINT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["name", "n"],
}
CONVERSATIONS = {
    "plain": [user("Hello")],
    "multi-byte": [user("Some emoji and Chinese please")],
    "later turn": [user("Hello"), answered("Hi 👋🏽"), user("What did I say?")],
    "call": [developer(WEATHER), user("Weather in Paris, with a preamble")],
    "after a call": [
        developer(WEATHER, TIME),
        user("use get_weather and now"),
        thought("I call."),
        called("get_weather", '{"location": "Paris"}'),
        returned("get_weather", '{"sun": true}'),
    ],
    "no thinking": [user("[[sim think=none say=naïve 👩‍👩‍👧 नमस्ते]]")],
    "prefix of an answer in the history": [user("Hello"), answered("You said")],
    "an answer in a format": [
        formatted(POINT, WEATHER),
        user('Say "naïve 👩‍👩‍👧", 7 times in Rome'),
    ],
    "a drift": [formatted(POINT, WEATHER), user("Weather in Rome [[sim drift=extra]]")],
    "an attack": [developer(WEATHER, TIME), user("Weather in Rome [[sim attack=twice]]")],
    "long": [user("[[sim tokens=400 think=300]]")],
}


def _by_letter(text: str) -> list[int]:
    return [one for letter in text for one in vocabulary().encode(letter)]


JSON_HEADER = [*FINAL_HEADER[:-1], *vocabulary().encode(" "), CONSTRAIN,
               *vocabulary().encode("json"), MESSAGE]  # fmt: skip
PROMPTS = {name: prompt_of(system(), *messages) for name, messages in CONVERSATIONS.items()}
PREFILLS = {
    "nothing": [],
    "final": list(FINAL_HEADER),
    "final, and words": [*FINAL_HEADER, 13225, 11],
    "analysis": [CHANNEL, 35644, MESSAGE],
    "half a header": [CHANNEL],
    "a commentary header": [CHANNEL, 12606, 815],
    "a call": [
        *vocabulary().encode(" to=functions.get_weather"), CHANNEL, 12606, 815, MESSAGE
    ],
    "somebody's analysis": [CHANNEL, 35644, MESSAGE, 13225, END, *OPENING],
    "somebody's answer": [*FINAL_HEADER, 13225, END],
    "nonsense": [200003, 5, 6, 200005, 7],
    "part of a recipient": vocabulary().encode(" to=functions."),
    "part of a name": vocabulary().encode(" to=functions.get_w"),
    "a recipient": vocabulary().encode(" to=functions.get_weather"),
    "a call in JSON": [
        *vocabulary().encode(" to=functions.get_weather"), CHANNEL, 12606, 815,
        *vocabulary().encode(" "), CONSTRAIN, *vocabulary().encode("json"), MESSAGE
    ],
    "an answer in JSON": JSON_HEADER,
    "an answer cut by somebody else": [*JSON_HEADER, *_by_letter('{"name": "naïve')],
    "half a character": [
        *JSON_HEADER, *_by_letter('{"name": "naïve '), vocabulary().encode("👩")[0]
    ],
    "an answer in JSON, begun": [*JSON_HEADER, *vocabulary().encode("{")],
}  # fmt: skip


@pytest.mark.slow
@given(st.sampled_from(sorted(PROMPTS)), st.sampled_from(sorted(PREFILLS)), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_cut_turn_goes_on_exactly_where_it_broke_off(
    name: str, prefill: str, data: st.DataObject
) -> None:
    prompt = [*PROMPTS[name], *PREFILLS[prefill]]
    out = continuation(prompt)
    cut = data.draw(st.integers(0, len(out)))
    assert continuation([*prompt, *out[:cut]]) == out[cut:]


@pytest.mark.parametrize("name", ["plain", "multi-byte", "call", "after a call"])
def test_every_cut_of_a_turn_gives_its_rest(name: str) -> None:
    out = continuation(PROMPTS[name])
    rests = [continuation([*PROMPTS[name], *out[:cut]]) for cut in range(len(out) + 1)]
    assert rests == [out[cut:] for cut in range(len(out) + 1)]


@pytest.mark.slow
def test_recorded_output_is_said_as_it_is_and_goes_on_after_any_cut(
    subtests: pytest.Subtests,
) -> None:
    for case, script in corpus.load().items():
        with subtests.test(case=case):
            check_replay(prompt_of(user(f"please say corpus:{case}")), script)


def check_replay(prompt: list[int], script: corpus.Recorded) -> None:
    out = script.ids[len(OPENING) :]
    first = scripted_model().continuation(prompt)
    assert (first.ids, first.finish) == (out, script.finish)
    rests = [continuation([*prompt, *out[:cut]]) for cut in range(len(out) + 1)]
    assert rests == [out[cut:] for cut in range(len(out) + 1)]


@each("name", sorted(PROMPTS))
def test_every_script_is_well_formed_and_ends_with_one_stop_id(name: str) -> None:
    out = continuation(PROMPTS[name])
    parsed(out)
    assert [one for one in out if one in {RETURN, CALL}] == out[-1:]


def test_another_instance_says_the_same() -> None:
    other = WaywardModel(vocabulary(), corpus.load())
    for prompt in PROMPTS.values():
        assert other.continuation(prompt).ids == continuation(prompt)


def test_a_prefilled_header_is_answered_in_its_channel() -> None:
    prompt = PROMPTS["plain"]
    whole = continuation(prompt)
    out = continuation([*prompt, *FINAL_HEADER])
    assert whole[-len(out) :] == out
    assert all(one < FIRST_SPECIAL for one in out[:-1])


def test_a_prefilled_call_gets_arguments_and_nothing_else() -> None:
    prompt = prompt_of(developer(WEATHER), user("Hello from Berlin"))
    out = continuation([*prompt, *PREFILLS["a call"]])
    assert vocabulary().decode(out) == '{"location": "Berlin"}'
    assert out[-1] == CALL


@pytest.mark.parametrize("name", [name for name in PREFILLS if "recipient" in name])
def test_a_prefilled_address_is_finished_to_a_call(name: str) -> None:
    prompt = prompt_of(developer(WEATHER, TIME), user("Hello from Berlin"))
    said = parsed([*PREFILLS[name], *continuation([*prompt, *PREFILLS[name]])])
    assert said.calls == [("functions.get_weather", '{"location": "Berlin"}')]


def test_an_address_begun_goes_to_the_tool_that_the_user_means() -> None:
    prompt = prompt_of(developer(WEATHER, TIME), user("use now"))
    said = vocabulary().encode(" to=functions.")
    assert parsed([*said, *continuation([*prompt, *said])]).calls == [("functions.now", "{}")]


@pytest.mark.parametrize(
    "name", [name for name in PREFILLS if "an answer" in name and "somebody's" not in name]
)
def test_an_answer_in_json_is_finished_as_json(name: str) -> None:
    prompt = PROMPTS["an answer in a format"]
    said = parsed([*PREFILLS[name], *continuation([*prompt, *PREFILLS[name]])])
    assert json.loads(said.final) == {"name": "naïve 👩‍👩‍👧", "n": 7}


def test_an_answer_cut_within_a_character_goes_on_within_it() -> None:
    prompt, prefill = PROMPTS["an answer in a format"], PREFILLS["half a character"]
    said = parsed([*prefill, *continuation([*prompt, *prefill])])
    assert json.loads(said.final) == {"name": "naïve 👩‍👩‍👧", "n": 7}


def test_a_character_cut_as_nobody_cuts_it_is_completed() -> None:
    byte = next(one for one in range(256) if vocabulary().piece(one) == b"\xf0")
    prefill = [*PREFILLS["half a character"][:-1], byte]
    out = continuation([*PROMPTS["an answer in a format"], *prefill])
    said = parsed([*prefill, *out])
    assert json.loads(said.final)["name"].startswith("naïve ")


def test_a_turn_that_only_thought_can_be_made_to_answer() -> None:
    prompt = prompt_of(user("corpus:E10"))
    out = continuation([*prompt, *turn_ids([((), continuation(prompt)), (FINAL_HEADER, ())])])
    assert out[-1] == RETURN
    assert vocabulary().decode(out).startswith("You said")


def test_a_body_that_somebody_else_began_is_brought_to_an_end() -> None:
    out = continuation([*PROMPTS["plain"], *FINAL_HEADER, *vocabulary().encode("Bananas")])
    assert vocabulary().decode(out).endswith("as the script has it.")
    assert out[-1] == RETURN


def test_a_prompt_without_the_opening_of_an_answer_gets_it_too() -> None:
    prompt = PROMPTS["plain"]
    assert continuation(prompt[:-2]) == [*OPENING, *continuation(prompt)]
    assert continuation(prompt[:-1]) == [OPENING[1], *continuation(prompt)]


MARKERS = st.sampled_from([START, END, MESSAGE, CHANNEL, CALL, RETURN, *OPENING, 1428])


@pytest.mark.slow
@given(st.lists(st.one_of(st.integers(0, VOCABULARY_SIZE - 1), MARKERS)))
@settings(max_examples=examples(200), deadline=None)
def test_no_prompt_is_too_broken_to_be_continued(prompt: list[int]) -> None:
    out = continuation(prompt)
    assert all(0 <= one < VOCABULARY_SIZE for one in out)
