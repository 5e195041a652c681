"""Bodies of the Conversations API, read and shown."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.conversations import Conversation as OpenAIConversation

from gateway.errors import InvalidRequest
from gateway.protocol.conversation_bodies import (
    ADDED_ITEMS_MAX,
    Conversation,
    NewMetadata,
    parse_conversation,
    parse_items,
    parse_metadata,
    unknown_conversation,
    unknown_item,
)
from gateway.protocol.items import (
    FunctionCall,
    InputImage,
    InputText,
    ItemReference,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)
from tests.fakes.cases import each
from tests.fakes.create_bodies import LIMITS

if TYPE_CHECKING:
    from gateway.protocol.items import InputItem

HELLO = {"role": "user", "content": "Hello"}


def items_of(*items: Any, strict: bool = False) -> tuple[InputItem, ...]:
    return parse_items(orjson.dumps({"items": items}), limits=LIMITS, strict=strict).items


@each("kind", [[], {}, 1, [[]]])
@each("is_part", [False, True])
def test_a_type_that_is_no_string_is_refused(kind: object, is_part: bool) -> None:
    part = {"type": kind if is_part else "input_text", "text": "x"}
    item = {"type": "message" if is_part else kind, "role": "user", "content": [part]}
    with pytest.raises(InvalidRequest):
        items_of(item)


def test_a_conversation_is_shown_as_openai_shows_one() -> None:
    made = Conversation(UUID(int=7), datetime(2026, 11, 21, 12, 0, 0, 5, UTC), {"a": "b"})
    shown = OpenAIConversation.model_validate(made.body(), strict=True)
    assert (shown.id, shown.created_at) == (f"conv_{UUID(int=7).hex}", 1795262400)
    assert shown.metadata == {"a": "b"}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"items":null,"metadata":null}', b'{"items":[]}'])
def test_a_conversation_may_begin_with_nothing(body: bytes) -> None:
    asked = parse_conversation(body, limits=LIMITS)
    assert (asked.items, asked.metadata) == ((), {})


@each("is_new", [False, True])
def test_a_message_right_before_a_call_is_a_preamble(is_new: bool) -> None:
    """Unless it has an id: it may be a copy of one that the conversation has."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = {"role": "assistant", "content": "a"}
    listed = [said, call, {**said, "id": "msg_1"}, call, {**said, "phase": "final_answer"}, call]
    body = orjson.dumps({"items": listed})
    parse = parse_conversation if is_new else parse_items
    phases = [one.phase for one in parse(body, limits=LIMITS).items if isinstance(one, Message)]
    assert phases == ["commentary", "commentary" if is_new else None, "final_answer"]


def test_every_kind_of_item_is_read_as_in_a_request() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    reference = {"id": "msg_1"}
    message, called, referred = items_of(HELLO, call, reference)
    assert message == Message(role="user", content=(InputText(text="Hello"),))
    assert isinstance(called, FunctionCall)
    assert referred == ItemReference(id="msg_1")


@pytest.mark.parametrize("kind", ["text", "summary_text", "reasoning_text"])
def test_a_text_of_any_name_is_the_text_of_its_role(kind: str) -> None:
    content = [{"type": kind, "text": "x"}]
    asked, said = items_of(
        {"role": "user", "content": content},
        {"type": "message", "role": "assistant", "content": content},
    )
    assert isinstance(asked, Message)
    assert isinstance(said, Message)
    assert asked.content == (InputText(text="x"),)
    assert said.content == (OutputText(text="x"),)


def test_the_parts_of_reasoning_keep_their_names() -> None:
    (thought,) = items_of(
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]}
    )
    assert thought == Reasoning(content=(ReasoningText(text="x"),))


def test_a_screenshot_is_an_image() -> None:
    part = {"type": "computer_screenshot", "image_url": "https://x/y.png", "file_id": None}
    (message,) = items_of({"role": "user", "content": [part]})
    assert isinstance(message, Message)
    assert message.content == (InputImage(image_url="https://x/y.png"),)


@pytest.mark.parametrize("content", ["x", None, [3], [{"type": 3}], [[]]])
def test_content_of_another_shape_is_judged_as_in_a_request(content: Any) -> None:
    message = {"role": "user", "content": content}
    if content == "x":
        assert items_of(message)
    else:
        with pytest.raises(InvalidRequest):
            items_of(message)


def refused(*items: Any, **options: Any) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as refusal:
        items_of(*items, **options)
    return refusal.value.code, refusal.value.param


def test_mistakes_are_named_by_their_place() -> None:
    assert refused() == ("empty_array", "items")
    assert refused(*[HELLO] * (ADDED_ITEMS_MAX + 1)) == ("array_above_max_length", "items")
    assert refused(HELLO, "x") == ("invalid_type", "items[1]")
    assert refused(HELLO, {"type": "configuration_update"}) == (
        *("unsupported_parameter", "items[1].type"),
    )
    unnamed = {"type": "additional_tools", "tools": [{"type": "function"}]}
    assert refused(HELLO, unnamed) == ("missing_required_parameter", "items[1].tools[0].name")
    assert refused({**HELLO, "content": [{"type": "input_text"}]}) == (
        "missing_required_parameter",
        "items[0].content[0].text",
    )
    long = {**HELLO, "content": "x" * (LIMITS.text_chars_max + 1)}
    assert refused(HELLO, long) == ("string_above_max_length", "items[1].content[0].text")
    trigger = {"type": "compaction_trigger"}
    assert refused(trigger) == ("unsupported_parameter", "items[0].type")


def test_images_are_refused_where_they_are_refused_in_requests() -> None:
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}
    spoken = {**picture, "role": "assistant"}
    assert items_of(picture)
    assert refused(spoken) == ("invalid_value", "items[0].content[0].type")
    assert refused(picture, strict=True) == ("unsupported_parameter", "items[0].content[0].type")
    body = orjson.dumps({"items": [picture]})
    with pytest.raises(InvalidRequest):
        parse_conversation(body, limits=replace(LIMITS, rejects_media=True))


@pytest.mark.parametrize("parse", [parse_conversation, parse_items, parse_metadata])
def test_unknown_keys_are_refused_only_if_strict(parse: Any) -> None:
    body = orjson.dumps({"items": [HELLO], "metadata": {}, "zeta": 1, "alpha": 2})
    assert {"zeta", "alpha"} <= set(parse(body, limits=LIMITS).ignored)
    with pytest.raises(InvalidRequest) as refusal:
        parse(body, limits=LIMITS, strict=True)
    assert refusal.value.code == "unknown_parameter"


def test_what_is_ignored_is_no_parameter_itself() -> None:
    asked = parse_conversation(b'{"ignored":["metadata"],"a b":1,"items":null}', limits=LIMITS)
    assert asked.ignored == ("ignored",)


def test_metadata_must_be_there_and_may_be_null() -> None:
    assert parse_metadata(b'{"metadata":{"a":"b"}}', limits=LIMITS) == NewMetadata(
        metadata={"a": "b"}
    )
    assert parse_metadata(b'{"metadata":null}', limits=LIMITS).metadata == {}
    with pytest.raises(InvalidRequest) as refusal:
        parse_metadata(b"{}", limits=LIMITS)
    assert refusal.value.code == "missing_required_parameter"


def test_an_id_is_repeated_only_as_far_as_it_is_one() -> None:
    assert len(unknown_conversation("c" * 10_000).message) < 300
    assert len(unknown_item("conv_1", "i" * 10_000).message) < 300


@pytest.mark.slow
@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["items", "metadata", "type", "role", "content", "id", "text"]),
                inner,
                max_size=4,
            )
        ),
    ).map(orjson.dumps)
)
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for parse in (parse_conversation, parse_items, parse_metadata):
        with suppress(InvalidRequest):
            parse(body, limits=LIMITS)
