"""What `include` shows of items, asked for at any time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.grants import Grants
from gateway.protocol.items import (
    INCLUDABLE,
    OUTPUTS,
    SOURCES,
    included,
    included_body,
    included_json,
    without_includable,
)
from gateway.protocol.responses.response_object import ResponseHead

TYPES = st.sampled_from(["web_search_call", "code_interpreter_call", "mcp_call", "message"])
VALUES = st.sets(st.sampled_from([SOURCES, OUTPUTS, "reasoning.encrypted_content"]))
WORDS = st.sampled_from(["", "a"])
ACTIONS = st.dictionaries(st.sampled_from(["type", "sources", "query", "url"]), WORDS)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "action": ACTIONS | st.none() | st.lists(st.just("sources")),
        "outputs": st.lists(WORDS) | st.none(),
        "output": WORDS,
    },
)


@pytest.mark.parametrize(
    ("kind", "fields", "later"),
    [
        ("code_interpreter_call", {"outputs": ["a"]}, {OUTPUTS}),
        ("web_search_call", {"action": {"type": "search", "sources": "a"}}, {SOURCES}),
        ("mcp_call", {"output": "a"}, {SOURCES}),
    ],
)
def test_a_field_that_is_asked_for_later_is_shown_then(
    kind: str, fields: dict[str, Any], later: set[str]
) -> None:
    check_later(kind, fields, set(), later)


@pytest.mark.slow
@given(TYPES, FIELDS, VALUES, VALUES)
def test_what_is_asked_for_later_is_what_would_have_been_shown(
    kind: str, fields: dict[str, Any], first: set[str], later: set[str]
) -> None:
    check_later(kind, fields, first, later)


def check_later(kind: str, fields: dict[str, Any], first: set[str], later: set[str]) -> None:
    """It is the same as if all had been asked for at first."""

    def item(shown: dict[str, Any]) -> dict[str, Any]:
        return {"type": kind, "action": None, "outputs": None, "output": None, **shown}

    shown, more = without_includable(kind, fields, first)
    wanted, _ = without_includable(kind, fields, first | later)
    told = included(item(shown), more, later)
    assert told == item(wanted)
    assert list(told) == list(item(wanted))
    assert included(told, more, later) == told
    assert shown.get("outputs") is None or OUTPUTS in first or kind != "code_interpreter_call"
    text = orjson.dumps(item(shown))
    assert included_json(text, orjson.dumps(more), later) == orjson.dumps(item(wanted))
    assert included_json(text, None, INCLUDABLE) == text
    body = orjson.dumps({"output": [{"id": "a", "type": "message"}, {"id": "b", **item(shown)}]})
    parts = {"b": orjson.dumps(more)}
    assert orjson.loads(included_body(body, parts, later))["output"][1] == {
        "id": "b",
        **item(wanted),
    }
    assert included_body(body, {}, INCLUDABLE) == body


def test_a_head_is_the_same_where_a_reader_asks_for_nothing_more() -> None:
    plain = ResponseHead(UUID(int=1), 0, background=False, echo={})
    assert plain.including(INCLUDABLE) is plain
    hosted = replace(plain, grants=Grants(include=(SOURCES, OUTPUTS)))
    assert hosted.including(INCLUDABLE) is hosted
    assert hosted.including(()) is hosted
    asked = replace(plain, grants=Grants(include=(OUTPUTS,))).including(INCLUDABLE)
    assert asked.grants == Grants(include=(OUTPUTS, SOURCES))
