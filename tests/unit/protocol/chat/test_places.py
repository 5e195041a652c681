"""Paths of the converted request, and those that the client wrote."""

from __future__ import annotations

from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.protocol.chat_conversion import ParameterPaths
from tests.fakes.cases import each

PLACES = ParameterPaths(
    {"input": "messages", "input[0]": "messages[0]", "input[0].call_id": "messages[0].id"}
)


@each(
    ("path", "original"),
    [
        ("input", "messages"),
        ("input[7]", "messages[7]"),
        ("input[0].content[1].text", "messages[0].content[1].text"),
        ("input[0].call_id", "messages[0].id"),
        ("inputs", "inputs"),
        ("model", "model"),
        ("metadata.x", "metadata.x"),
        ("tools[0].name", "tools[0].name"),
        ("", ""),
    ],
)
def test_a_path_is_as_near_as_it_is_known(path: str, original: str) -> None:
    assert PLACES.original(path) == original


def test_a_refusal_is_restated_with_its_code() -> None:
    error = InvalidRequest("Invalid 'input[0].call_id': long.", code="c", param="input[0].call_id")
    restated = PLACES.restated(error)
    assert (restated.message, restated.code) == ("Invalid 'messages[0].id': long.", "c")
    assert restated.param == "messages[0].id"


def test_a_refusal_without_a_place_keeps_its_message() -> None:
    restated = PLACES.restated(InvalidRequest("Leave 'text.format' out."))
    assert (restated.message, restated.param) == ("Leave 'response_format' out.", None)


def test_a_context_that_is_too_long_is_that_of_the_messages() -> None:
    restated = PLACES.restated(ContextLengthExceeded("Too long."))
    assert (restated.code, restated.param) == ("context_length_exceeded", "messages")
