"""Law: a prompt that repeats a history as a whole is the one that is made of it item by item."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import ids
from gateway.errors import GatewayError
from gateway.sealing import Sealer, SealingSecret
from gateway.services.models import Model
from gateway.services.runs.history_source import History
from gateway.services.runs.spec_builder import CreateCommand, RunInput, SpecBuilder, Written
from gateway.settings.sections import Harmony
from gateway.tenancy import Principal, TenantId
from gateway.tenancy.policy import TenantPolicy
from tests.fakes.contexts import (
    answer,
    answering,
    asking,
    call,
    computed,
    from_wire,
    output,
    said,
    searched,
    served,
    thought,
    user,
)
from tests.fakes.create_bodies import parse
from tests.fakes.examples import examples
from tests.fakes.harmony_script import harmony_of
from tests.fakes.packed import packed

if TYPE_CHECKING:
    from gateway.protocol.context_item import ContextItem

SPECS = SpecBuilder(
    system_message=Harmony(identity="You.", date="off"),
    cache_salt_key=b"salt",
    sealer=Sealer([SealingSecret("k", b"sixteen bytes or more")]),
)
PRINCIPAL = Principal(TenantId(ids.new_uuid()), "acme", ids.new_uuid(), TenantPolicy())
MODEL = Model("m", 0, 100_000, (), "medium", harmony_of("m"))

messages = st.sampled_from(
    [user(), answer(), answer(phase="commentary"), answer(phase=None), said("developer", "A")]
)
plain_items = st.lists(messages | st.just(thought()), max_size=8)
any_items = st.lists(
    messages | st.just(thought()) | st.sampled_from([call("h1"), output("h1"), call("h2")]),
    max_size=8,
)
LISTED = from_wire({"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "crm", "tools": []})
hosted_items = st.lists(
    messages
    | st.sampled_from([thought(), searched(), computed(), served(), served("1", "msg_9"), LISTED]),
    max_size=8,
)
asked_items = st.lists(
    messages
    | st.sampled_from([thought(), searched(), asking("msg_0"), served("1", "msg_0")])
    | st.sampled_from([answering("msg_0", approve=True), answering("msg_0", approve=False)]),
    max_size=8,
).map(lambda items: [asking("msg_0"), *items])
some_ids = st.lists(st.integers(0, 200_000), max_size=4).map(lambda found: array("I", found))

NEW: list[dict[str, Any]] = [
    {"role": "user", "content": "go on"},
    {"role": "assistant", "content": "said"},
    {"role": "assistant", "content": "saying", "phase": "commentary"},
    {"role": "developer", "content": "B"},
    {"type": "message", "id": "msg_0", "role": "user", "content": "with an id"},
    {"type": "reasoning", "id": "rs_9", "summary": [], "content": [], "encrypted_content": None},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "function_call", "call_id": "n1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "n1", "output": "ok"},
    {"type": "function_call_output", "call_id": "h2", "output": "ok"},
    {"type": "mcp_approval_response", "approval_request_id": "msg_0", "approve": True},
    {"type": "mcp_approval_response", "approval_request_id": "msg_0", "approve": False},
]


@st.composite
def histories(draw: st.DrawFn) -> list[ContextItem]:
    items = draw(plain_items | any_items | hosted_items | asked_items)
    made = [
        replace(
            item, item_id=f"msg_{at}", parsed=None, ids=None if item.approves else draw(some_ids)
        )
        for at, item in enumerate(items)
    ]
    if made and draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(made) - 1))
        made[at] = replace(made[at], ids=None, complete=False)
    return made


def input_of(history: list[ContextItem], new: list[Any], model: Model = MODEL) -> RunInput:
    request = parse(input=new, truncation="auto", max_output_tokens=16)
    return RunInput(
        command=CreateCommand(PRINCIPAL, request, None, body_bytes=0, requested_at=0.0),
        model=model,
        history=History(None, packed(history), 0),
        stored={item.item_id: item for item in history},
        uuid=PRINCIPAL.tenant_id,
        created_at=0,
    )


def written(history: list[ContextItem], new: list[Any], *, item_by_item: bool) -> Written | str:
    try:
        return SPECS.write(input_of(history, new), item_by_item=item_by_item)
    except GatewayError as error:
        return str(error)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(histories(), st.lists(st.sampled_from(NEW), min_size=1, max_size=4))
def test_a_history_is_repeated_as_it_would_be_item_by_item(
    history: list[ContextItem], new: list[Any]
) -> None:
    quick = written(history, new, item_by_item=False)
    careful = written(history, new, item_by_item=True)
    if isinstance(quick, str) or isinstance(careful, str):
        assert quick == careful
        return
    assert quick.prompt.ids == careful.prompt.ids
    both = quick.context, careful.context
    added, again = (context.items[context.inherited :] for context in both)
    assert added == again


def test_a_plain_history_is_not_made_item_by_item() -> None:
    history = [replace(user(), ids=array("I", [1, 2])), replace(answer(), ids=array("I", [3]))]
    quick = written(history, NEW[:1], item_by_item=False)
    assert isinstance(quick, Written)
    assert quick.context.inherited == 0
    assert array("I", [1, 2, 3]).tobytes() in quick.prompt.ids.tobytes()


def test_an_approved_call_whose_request_was_deleted_is_not_its_result_alone() -> None:
    history = [replace(served("1", "mcpr_1"), ids=array("I", [150_011]))]
    quick = written(history, NEW[:1], item_by_item=False)
    assert isinstance(quick, Written)
    assert 150_011 not in quick.prompt.ids


def test_reasoning_is_repeated_only_behind_the_last_answer() -> None:
    thoughts = [replace(thought(), ids=array("I", [number])) for number in (150_011, 12)]
    history = [thoughts[0], replace(answer(), ids=array("I", [3])), thoughts[1]]
    quick = written(history, NEW[:1], item_by_item=False)
    assert isinstance(quick, Written)
    assert array("I", [3, 12]).tobytes() in quick.prompt.ids.tobytes()
    assert 150_011 not in quick.prompt.ids


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(histories(), st.integers(60, 120))
def test_its_oldest_turns_are_left_out_all_the_same(history: list[ContextItem], room: int) -> None:
    given = input_of(history, NEW[:1], replace(MODEL, context_length=room))
    assert fitting(given, item_by_item=False) == fitting(given, item_by_item=True)


def fitting(given: RunInput, *, item_by_item: bool) -> list[int] | str:
    """The prompt that is sent, or why there is none."""
    try:
        made = SPECS.write(given, item_by_item=item_by_item)
        return list(SPECS.spec(given, made).prompt_ids)
    except GatewayError as error:
        return str(error)
