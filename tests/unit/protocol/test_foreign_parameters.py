"""Parameters of another API that would change the answer are refused with the one to use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.protocol import documented
from gateway.protocol.chat_conversion import (
    CHAT_PARAMETERS,
    COMPLETION_PARAMETERS,
    parse_chat,
    parse_completion,
)
from gateway.protocol.documented import (
    IN_CHATS,
    IN_COMPACTIONS,
    IN_COMPLETIONS,
    IN_RESPONSES,
    is_harmless,
)
from gateway.protocol.responses.create_request import (
    COMPACTION,
    COUNTING,
    PARAMETERS,
    parse_create,
    parse_subset,
)
from tests.fakes.cases import each
from tests.fakes.create_bodies import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, tuple[Callable[[bytes], Any], Json]] = {
    "responses": (lambda body: parse_create(body, limits=LIMITS), {"input": "hi"}),
    "count": (lambda body: parse_subset(body, COUNTING, limits=LIMITS), {"input": "hi"}),
    "compact": (lambda body: parse_subset(body, COMPACTION, limits=LIMITS), {"input": "hi"}),
    "chat": (lambda body: parse_chat(body, limits=LIMITS), {"messages": MESSAGES}),
    "completions": (lambda body: parse_completion(body, limits=LIMITS), {"prompt": "hi"}),
}
REMEDIES = {
    "responses": IN_RESPONSES,
    "count": IN_RESPONSES,
    "compact": IN_COMPACTIONS,
    "chat": IN_CHATS,
    "completions": IN_COMPLETIONS,
}


def read(api: str, **fields: Any) -> Any:
    parse, least = BODIES[api]
    document = {"model": "m", **least, **fields}
    return parse(orjson.dumps({name: said for name, said in document.items() if said != ...}))


@pytest.mark.requirement("error.other-apis")
@each(
    ("api", "name", "use"),
    [(api, name, use) for api, remedies in REMEDIES.items() for name, use in remedies.items()],
)
def test_a_parameter_of_another_api_is_refused_with_the_one_to_use(
    api: str, name: str, use: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(api, **{name: [{"any": "value"}]})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)
    assert f"'{name}' is not a parameter of this API. Use {use} instead." in str(caught.value)


@pytest.mark.parametrize(
    ("api", "fields", "name"),
    [
        ("responses", {"input": ..., "messages": MESSAGES}, "messages"),
        ("compact", {"input": ..., "conversation": "conv_1"}, "conversation"),
        ("chat", {"messages": ..., "input": "hi"}, "input"),
        ("completions", {"prompt": ..., "messages": MESSAGES}, "messages"),
    ],
)
def test_whoever_mistakes_the_api_is_told_so_and_not_what_is_missing(
    api: str, fields: Json, name: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(api, **fields)
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        ("responses", {"n": 1, "logprobs": False, "response_format": {"type": "text"}}),
        ("responses", {"max_tokens": None, "messages": None, "functions": []}),
        ("responses", {"reasoning_effort": "low", "verbosity": "low", "client_metadata": {}}),
        ("chat", {"background": False, "truncation": "disabled", "include": [], "text": {}}),
        ("chat", {"max_tool_calls": 3, "previous_response_id": None, "best_of": 1}),
        ("completions", {"tools": [], "response_format": {"type": "text"}, "instructions": ""}),
    ],
)
def test_what_changes_nothing_is_no_mistake(api: str, fields: Json) -> None:
    read(api, **fields)


def test_a_number_is_not_taken_for_a_boolean() -> None:
    assert not is_harmless("n", True)
    assert not is_harmless("n", 2)
    assert is_harmless("n", 1)
    assert is_harmless("n", 1.0)
    assert not is_harmless("logprobs", 0)


def test_only_parameters_that_have_no_effect_are_refused() -> None:
    assert IN_RESPONSES.keys().isdisjoint(PARAMETERS)
    assert IN_COMPACTIONS.keys().isdisjoint(COMPACTION.served)
    assert IN_CHATS.keys().isdisjoint(CHAT_PARAMETERS)
    assert IN_COMPLETIONS.keys().isdisjoint(COMPLETION_PARAMETERS)


def test_every_parameter_of_a_chat_has_an_effect_or_a_remedy_or_is_harmless() -> None:
    harmless = {"audio", "prediction", "web_search_options", "modalities"}
    harmless |= {"reasoning_effort", "verbosity"}
    assert documented.CHAT_PARAMETERS - PARAMETERS - IN_RESPONSES.keys() == harmless


def test_and_so_has_every_parameter_of_a_response() -> None:
    harmless = {"access_programs", "enable_response_messages", "image", "include", "max_tool_calls"}
    harmless |= {"background_options"}
    known = PARAMETERS | documented.CREATE_PARAMETERS
    assert known - CHAT_PARAMETERS - IN_CHATS.keys() == harmless
