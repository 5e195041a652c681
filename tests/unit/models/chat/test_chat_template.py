"""What is learned of a template by having small conversations rendered."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.models.chat.chat_messages import ANY
from gateway.models.chat.chat_template import ResultFrame, Template
from tests.fakes.chat_format import answer, ids_of, loaded
from tests.fakes.chat_server import OPENING, Refused, chatml, thinking_last, unopened

if TYPE_CHECKING:
    from collections.abc import Callable


def learned(template: Callable[[dict[str, Any]], str], **options: Any) -> Template:
    format_ = loaded(**options)
    answers = {one: answer(one, template) for one in format_.questions}
    return format_.template(answers)


def test_frames_are_cut_out_of_what_was_rendered() -> None:
    template = learned(chatml)
    assert template.result == ResultFrame(
        call_end=tuple(ids_of("<|im_end|>\n")),
        front=tuple(ids_of("<|im_start|>user\n<tool_response>\n")),
        behind=tuple(ids_of("\n</tool_response><|im_end|>\n")),
    )
    assert template.opening == tuple(ids_of(OPENING))
    assert (template.faults, template.takes_tools) == ((), True)
    assert template.habits == ANY


def test_a_thought_that_the_prompt_opens_is_no_part_of_a_frame() -> None:
    template = learned(partial(chatml, opens_thoughts=True))
    assert template.opening == tuple(ids_of(OPENING))
    assert template.result == learned(chatml).result


def test_a_result_inside_of_json_is_noticed() -> None:
    def quoted(body: dict[str, Any]) -> str:
        text = chatml(body)
        for message in body["messages"]:
            if message["role"] == "tool":
                text = text.replace(message["content"], orjson.dumps(message["content"]).decode())
        return text

    frame = learned(quoted).result
    assert frame is not None
    assert frame.is_json
    assert frame.front[-1:] == tuple(ids_of('"'))


def test_what_is_learned_can_be_kept() -> None:
    template = learned(chatml)
    kept = Template.from_state(template.template_state)
    assert (kept.opening, kept.result) == (template.opening, template.result)
    assert Template().template_state == b""


@pytest.mark.parametrize("template_state", [b"[]", b"{}", b'{"opening": 1}', b"x"])
def test_what_was_never_learned_is_refused(template_state: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Template.from_state(template_state)


def refusing(*roles: str) -> Callable[[dict[str, Any]], str]:
    def template(body: dict[str, Any]) -> str:
        if [message["role"] for message in body["messages"]] == list(roles):
            raise Refused("not this")
        return chatml(body)

    return template


def test_habits_are_what_is_refused_or_not_shown() -> None:
    assert not learned(refusing("system", "user")).habits.system
    assert not learned(refusing("user", "assistant", "system", "user")).habits.late_system
    assert not learned(refusing("user", "user")).habits.repeated_user
    interrupted = learned(refusing("user", "assistant", "tool", "user"))
    assert not interrupted.habits.user_behind_result
    assert not learned(refusing("user", "assistant", "tool", "tool")).habits.several_calls
    assert not learned(showing_one_call).habits.several_calls


def showing_one_call(body: dict[str, Any]) -> str:
    """Of several calls in a message it shows the first, and says nothing of the others."""
    messages = [
        {**one, "tool_calls": one["tool_calls"][:1]} if "tool_calls" in one else one
        for one in body["messages"]
    ]
    return chatml({**body, "messages": messages})


def test_a_template_that_opens_no_turn_has_no_frames() -> None:
    template = learned(lambda body: chatml({**body, "add_generation_prompt": False}))
    assert template.result is None
    assert "not read as the template writes them" in template.faults[0]
    assert learned(refusing("user")).faults == (
        "a turn is not opened behind a conversation: not this",
    )
    odd = learned(lambda body: "x" * body["add_generation_prompt"] + chatml(body))
    assert odd.faults == ("a turn is not opened behind a conversation",)


def test_a_template_that_refuses_results_has_no_frames() -> None:
    template = learned(refusing("user", "assistant", "tool"))
    assert template.faults == ("calls and results are refused: not this",)
    assert template.result is None


def test_a_call_that_begins_otherwise_in_the_history_has_no_frame() -> None:
    def template(body: dict[str, Any]) -> str:
        return chatml(body).replace(f"{OPENING}<tool_call>", "<|im_start|>model\n<tool_call>")

    assert learned(template).faults == ("a call in the history does not begin as a turn does",)


def test_calls_that_the_syntax_does_not_read_are_told() -> None:
    [fault] = learned(chatml, calls="glm").faults
    assert "not read as the template writes them" in fault
    assert "probe_weather" in fault


def test_a_thought_before_a_call_that_comes_last_is_no_part_of_a_frame() -> None:
    template = learned(thinking_last)
    assert (template.result, template.faults) == (learned(chatml).result, ())


def test_a_call_that_ends_otherwise_before_its_result_has_no_frame() -> None:
    def template(body: dict[str, Any]) -> str:
        return chatml(body).replace("</tool_call><|im_end|>\n<|im_start|>user", "</tool_call>")

    assert learned(template).faults == ("what stands before a result changes with it",)


def test_a_template_whose_turns_have_no_opening_has_frames() -> None:
    template = learned(unopened)
    assert (template.opening, template.faults) == ((), ())
    assert template.result == learned(chatml).result


def test_turns_without_an_opening_that_begin_otherwise_have_no_frames() -> None:
    def template(body: dict[str, Any]) -> str:
        text = unopened(body)
        return text if body["messages"][-1]["role"] == "assistant" else f"{text}<|im_start|>"

    assert (learned(template).result, learned(template).faults) == (None, ())


def test_a_template_without_tools_is_known() -> None:
    assert not learned(lambda body: chatml({**body, "tools": None})).takes_tools


def test_a_prompt_that_changes_with_the_result_has_no_frame() -> None:
    def template(body: dict[str, Any]) -> str:
        text = chatml(body)
        return text.replace("Oslo?", "Oslo!") if "tool_response" in text else text

    assert learned(template).faults == ("what stands before a result changes with it",)


@pytest.mark.parametrize("shown", ["it", 'Oslo has "7" degreest'])
def test_a_result_that_is_not_shown_between_ids_of_its_own_has_no_frame(shown: str) -> None:
    def template(body: dict[str, Any]) -> str:
        return chatml(body).replace('Oslo has "7" degrees', shown)

    found = learned(template)
    assert found.result is None
    assert found.faults == ("the text of a result is not between ids of its own",)


def test_text_right_beside_a_result_is_part_of_the_frame() -> None:
    def template(body: dict[str, Any]) -> str:
        return chatml(body).replace('Oslo has "7" degrees', 'the Oslo has "7" degrees!')

    frame = learned(template).result
    assert frame is not None
    assert frame.behind[:1] == tuple(ids_of("!"))
