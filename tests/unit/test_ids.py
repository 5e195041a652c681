"""What ids tell, and what they do not."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from gateway import ids
from tests.fakes.cases import each

UUID_OF_TEST = UUID("019aa0b0-c0d0-7e0f-8102-030405060708")


@each("form", range(8))
def test_a_call_id_notes_a_form(form: int) -> None:
    call_ids = [ids.call_id(UUID_OF_TEST, ordinal, form) for ordinal in range(300)]
    assert all(re.fullmatch("call_[0-9a-f]{24}", call_id) for call_id in call_ids)
    assert {ids.call_form(call_id) for call_id in call_ids} == {form}
    assert len({call_id[:-4] for call_id in call_ids}) == 300


def test_a_call_id_looks_the_same_in_every_form() -> None:
    last = {ids.call_id(UUID_OF_TEST, ordinal)[-1] for ordinal in range(300)}
    assert last == set("0123456789abcdef")


@each(
    "foreign",
    [
        "",
        "call_1",
        "call_" + "0" * 24,
        "call_" + "x" * 24,
        ids.call_id(UUID_OF_TEST, 0, 3).upper(),
        ids.call_id(UUID_OF_TEST, 0, 3) + "\n",
        ids.call_id(UUID_OF_TEST, 0, 3)[:-1],
        ids.call_id(UUID_OF_TEST, 0, 3).removeprefix("call_"),
    ],
)
def test_the_call_ids_of_others_note_nothing(foreign: str) -> None:
    assert ids.call_form(foreign) == 0


def test_output_items_of_one_response_have_their_source_in_common() -> None:
    made = [
        ids.output_item_id(prefix, UUID_OF_TEST, ordinal, form)
        for prefix in (ids.MESSAGE_PREFIX, ids.REASONING_PREFIX)
        for ordinal in (0, 1, 0x10000)
        for form in (0, 3)
    ]
    assert {ids.source_of_output(item_id) for item_id in made} == {UUID_OF_TEST.hex}
    for foreign in ("", "msg_1", ids.input_item_id(ids.MESSAGE_PREFIX, UUID_OF_TEST, 1)):
        assert ids.source_of_output(foreign) == ""


def test_item_ids_of_this_gateway_are_told_from_those_that_clients_make() -> None:
    prefixes = [*ids.HOSTED_PREFIXES.values(), ids.MESSAGE_PREFIX, ids.COMPACTION_PREFIX]
    for prefix in prefixes:
        assert ids.is_item_id(ids.input_item_id(prefix, UUID_OF_TEST, 0x10000))
        assert all(
            ids.is_item_id(ids.output_item_id(prefix, UUID_OF_TEST, 1, form)) for form in range(4)
        )
    for foreign in (
        "",
        "msg_1",
        "__fake_id__",
        f"msg_{UUID_OF_TEST}",
        ids.response_id(UUID_OF_TEST),
    ):
        assert not ids.is_item_id(foreign)


def test_call_ids_of_this_gateway_are_told_from_others() -> None:
    assert all(ids.is_call_id(ids.call_id(UUID_OF_TEST, 1, form)) for form in range(8))
    assert not any(map(ids.is_call_id, ("", "call_1", "call_" + "0" * 24)))


def test_a_message_id_notes_a_form_behind_what_it_was_without() -> None:
    plain = ids.output_item_id(ids.MESSAGE_PREFIX, UUID_OF_TEST, 1)
    assert plain == "msg_019aa0b0c0d07e0f81020304050607080001"
    noted = [ids.output_item_id(ids.MESSAGE_PREFIX, UUID_OF_TEST, 1, form) for form in range(4)]
    assert noted == [plain, plain + "g", plain + "h", plain + "i"]
    assert [ids.message_form(item_id) for item_id in noted] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "msg_g",
        "msg_0199-1g",
        "rs_019aa0b0c0d07e0f81020304050607080001g",
        "msg_019aa0b0c0d07e0f81020304050607080001g\n",
        ids.input_item_id(ids.MESSAGE_PREFIX, UUID_OF_TEST, 1),
    ],
)
def test_the_message_ids_of_others_note_nothing(foreign: str) -> None:
    assert ids.message_form(foreign) == 0
