"""Laws of the rules: pure, total over every echo that is made, and in accord with the prompt."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.protocol.tool_types import declared
from tests.fakes.create_bodies import SCHEMA, TOOLS, parse

if TYPE_CHECKING:
    from gateway.protocol.responses.create_request import CreateResponse

HOSTED: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "shell", "environment": {"type": "container_auto"}},
]
NAMES: list[dict[str, Any]] = [
    {"type": "function", "name": "f"},
    {"type": "function", "name": "ns.m"},
    {"type": "custom", "name": "n", "namespace": "ns"},
    {"type": "custom", "name": "g"},
    {"type": "shell"},
    {"type": "local_shell"},
    {"type": "apply_patch"},
]

names = st.sampled_from(NAMES)
choices = (
    st.sampled_from(["auto", "none", "required"])
    | names
    | st.fixed_dictionaries(
        {
            "type": st.just("allowed_tools"),
            "tools": st.lists(
                names | st.sampled_from([{"type": "namespace", "name": "ns"}, HOSTED[0]]),
                min_size=1,
                max_size=3,
            ),
        },
        optional={"mode": st.sampled_from(["auto", "required"])},
    )
)
formats = st.sampled_from(
    [{"type": "text"}, {"type": "json_object"}, SCHEMA, {**SCHEMA, "strict": True}]
)
bodies: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"tools": st.lists(st.sampled_from([*TOOLS, *HOSTED]), unique_by=id, max_size=8)},
    optional={
        "tool_choice": choices,
        "text": st.fixed_dictionaries({"format": formats}),
        "parallel_tool_calls": st.booleans(),
        "stop": st.text(min_size=1, max_size=5) | st.lists(st.text(min_size=1), max_size=4),
        "reasoning": st.fixed_dictionaries(
            {},
            optional={
                "summary": st.sampled_from(["auto", "concise", "detailed"]),
                "max_tokens": st.integers(1, 9),
            },
        ),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "top_k": st.integers(1, 9) | st.just(-1),
        "min_p": st.floats(0, 1),
    },
)


@st.composite
def requests(draw: st.DrawFn) -> CreateResponse:
    """Valid requests; a choice of tools that are not there is left out."""
    body = draw(bodies)
    if body.get("text", {}).get("format", {}).get("type", "text") != "text":
        body.pop("stop", None)
    with suppress(InvalidRequest):
        return parse(**body)
    return parse(**{**body, "tool_choice": "auto"})


made = st.tuples(requests(), st.booleans())


@pytest.mark.slow
@given(made=made)
def test_the_rules_are_a_function_of_the_stored_echo(made: tuple[CreateResponse, bool]) -> None:
    request, summaries = made
    fields = echo(request, summaries=summaries)
    stored = orjson.dumps(fields)
    assert rules_of(fields) == rules_of(orjson.loads(stored)) == rules_of(fields)
    assert orjson.dumps(fields) == stored


@pytest.mark.slow
@given(request=requests())
def test_the_model_is_told_of_the_tools_that_have_rules(request: CreateResponse) -> None:
    found = rules_of(echo(request))
    assert [tool.name for tool in declared(request.offered_tools)] == list(found.tools)


@pytest.mark.slow
@given(request=requests())
def test_what_may_be_called_is_a_tool_and_what_must_be_exists(request: CreateResponse) -> None:
    found = rules_of(echo(request))
    assert found.allowed <= found.tools.keys()
    assert found.calls != "required" or found.allowed
    assert not found.open_calls or found.allowed == found.tools.keys()


@pytest.mark.slow
@example(
    request=parse(
        tools=[*TOOLS, *HOSTED],
        tool_choice={"type": "allowed_tools", "tools": [NAMES[0], {"type": "shell"}]},
    )
)
@given(request=requests())
def test_what_is_echoed_is_accepted_again_and_demands_the_same(request: CreateResponse) -> None:
    fields = echo(request)
    names = ("tools", "tool_choice", "text", "parallel_tool_calls", "reasoning")
    extensions = ("stop", "seed", "top_k", "min_p")
    again = parse(
        **{name: fields[name] for name in names},
        **{name: fields[name] for name in extensions if name in fields},
    )
    assert rules_of(echo(again)) == rules_of(fields)
    assert echo(again) == fields
