"""A plan is read back as it was written, by any release that knows its version."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pytest
from asyncpg.pgproto import pgproto
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import ids
from gateway.constraints.validation import Checker
from gateway.engine.row_mapping import durable_row
from gateway.engine.run_spec import (
    PLAN_VERSION,
    compacted_of,
    inputs_of,
    plan_of,
    rebuild,
    request_of,
)
from gateway.entries import Alive, Compacted, ToolsListed, pack
from gateway.generation import Route, Sampling
from gateway.protocol.call_items import call_fields
from gateway.protocol.context_item import ConversationPlace
from gateway.protocol.responses.response_object import LONG_ECHO_BYTES, HarmonyMessages, kept_echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.sealing import Binding
from gateway.store.claims import Claim, ClaimedRun
from gateway.tenancy import Principal, ProjectId, TenantId
from gateway.text_ids import TEXT_STATE
from tests.fakes.hosted_tools import GRANTS, granted
from tests.fakes.staged_run import run_spec

if TYPE_CHECKING:
    from gateway.engine.run_spec import RunSpec

PENALTY = st.floats(-2, 2)
SAMPLING = st.builds(
    Sampling,
    max_tokens=st.integers(1, 2**31),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    presence_penalty=PENALTY,
    frequency_penalty=PENALTY,
    seed=st.none() | st.integers(0, 2**63 - 1),
    top_k=st.none() | st.integers(1, 100),
    min_p=st.none() | st.floats(0, 1),
    logprobs=st.none() | st.integers(0, 20),
)


def claimed(spec: RunSpec, plan: bytes | None = None) -> ClaimedRun:
    """The row of an accepted response, as a process gets it that claims it."""
    new = durable_row(spec, None, waits=True)
    return ClaimedRun(
        claim=Claim(spec.principal.tenant_id, new.uuid, 1),
        next_entry=1,
        attempts=1,
        was_queued=True,
        key_id=new.key_id,
        project_id=new.project_id,
        tenant_name=spec.principal.tenant_name,
        model=new.model,
        created_at=new.created_at,
        root_created_at=new.root_created_at,
        parent=new.parent,
        background=new.background,
        streamed=new.streamed,
        request=new.request,
        plan=(new.plan or b"") if plan is None else plan,
        prompt_ids=new.prompt_ids or array("I"),
    )


def durable(**fields: Any) -> RunSpec:
    spec = run_spec(background=True)
    rules = rules_of(spec.head.echo)
    packed = array("I", fields.pop("prompt_ids", spec.prompt_ids))
    return replace(
        spec, rules=rules, checker=Checker(rules, call_fields), prompt_ids=packed, **fields
    )


def made_of(spec: RunSpec, plan: bytes | None = None) -> RunSpec:
    """What another replica makes of it; of checkers there is one for each run."""
    rebuilt = rebuild(claimed(spec, plan))
    assert rebuilt is not None
    assert rebuilt.checker is not spec.checker
    return replace(rebuilt, checker=spec.checker)


@pytest.mark.slow
@settings(deadline=None)
@given(
    sampling=SAMPLING,
    prompt_ids=st.lists(st.integers(0, 2**32 - 1)),
    cache_salt=st.text("0123456789abcdef"),
    inputs=st.integers(0, 10_000),
    streamed=st.booleans(),
    has_parent=st.booleans(),
    root_created_at=st.integers(0, 2**31),
    reasoning_budget=st.none() | st.integers(1, 2**31),
    priority=st.integers(-1, 1),
    share_weight=st.integers(1, 10_000),
)
def test_any_replica_makes_the_same_run_of_an_accepted_response(
    *, has_parent: bool, **fields: Any
) -> None:
    spec = durable(parent=ids.new_uuid() if has_parent else None, **fields)
    assert made_of(spec) == spec


def test_a_run_taken_over_has_no_policy_and_no_items_of_its_own() -> None:
    spec, project = durable(), ProjectId(ids.new_uuid())
    other = Principal(TenantId(ids.new_uuid()), "other", ids.new_uuid(), project_id=project)
    spec = replace(spec, principal=other)
    rebuilt = rebuild(claimed(spec))
    assert rebuilt is not None
    assert rebuilt.principal == spec.principal
    assert rebuilt.added == ()


@pytest.mark.parametrize("placement", [None, b"where the context was generated"])
def test_a_replica_that_goes_on_knows_where_the_context_was_generated(
    placement: bytes | None,
) -> None:
    rebuilt = rebuild(claimed(replace(durable(), route=Route(placement))))
    assert rebuilt is not None
    assert rebuilt.route.placement == placement


def test_a_plan_of_another_version_is_left_to_those_that_know_it() -> None:
    plan = orjson.dumps({"version": PLAN_VERSION + 1})
    assert rebuild(claimed(durable(), plan)) is None
    with pytest.raises(ValueError, match="not known"):
        inputs_of(plan)


def test_a_plan_has_the_compaction_of_its_prompt() -> None:
    compacted = Compacted((1, 2), "hgw1.seal", 30, 10, 20, 5)
    plain, spec = durable(inputs=3), durable(inputs=3, compacted=compacted)
    assert made_of(spec) == spec
    assert (inputs_of(plan_of(spec)), compacted_of(plan_of(spec))) == (3, compacted)
    assert compacted_of(plan_of(plain)) is None


def test_a_plan_has_its_grants_and_listings() -> None:
    listings = (ToolsListed("srv", b"[1]"), ToolsListed("other", b"[]", b'"no"'))
    spec = granted(durable(), listings=listings, window_left=77, template_state=b'{"opening":[1]}')
    assert made_of(spec) == spec
    assert made_of(spec).head.grants == GRANTS
    assert made_of(granted(durable())).listings == ()


def test_a_plan_of_text_tells_whether_its_prompt_opens_a_thought() -> None:
    for is_open in (False, True):
        spec = durable(template_state=TEXT_STATE, window_left=77, opens_thought=is_open)
        assert made_of(spec) == spec


def test_secrets_are_in_nothing_that_is_kept_of_a_run() -> None:
    spec = granted(durable(), secrets={"srv": {"authorization": "hunter2"}})
    assert b"hunter2" not in plan_of(spec) + request_of(spec.head)
    assert made_of(spec).secrets == {}


def test_a_plan_of_a_turn_leaves_its_conversation_to_the_row() -> None:
    spec = durable(inputs=3, conversation=ConversationPlace(ids.new_uuid(), 7))
    plan = plan_of(spec)
    assert (inputs_of(plan), compacted_of(plan)) == (3, None)
    # Whose turn it is stays in its row: that is where its end looks.
    assert made_of(spec) == replace(spec, conversation=None)


def test_whoever_goes_on_knows_the_span_of_the_request() -> None:
    spec = durable(traceparent="00-1-2-01")
    assert made_of(spec).traceparent == "00-1-2-01"
    assert b"traceparent" not in plan_of(durable()), "it takes no room where none is recorded"


def test_what_a_later_release_adds_to_a_plan_is_no_obstacle() -> None:
    spec = durable(inputs=3)
    fields = orjson.loads(plan_of(spec))
    plan = orjson.dumps(
        {**fields, "later": True, "sampling": {**fields["sampling"], "later": True}}
    )
    assert made_of(spec, plan) == spec
    assert inputs_of(plan) == 3


@pytest.mark.parametrize(
    "plan", [b"", b"[]", b"{}", b'{"version":1}', b'{"version":1,"sampling":{}}']
)
def test_a_damaged_plan_is_told_from_one_of_another_version(plan: bytes) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        rebuild(claimed(durable(), plan))


def test_a_plan_holds_a_compaction_or_is_damaged() -> None:
    spec = durable(compacted=Compacted((1,), "hgw1.seal"))
    fields = {**orjson.loads(plan_of(spec)), "compacted": pack([Alive()]).hex()}
    with pytest.raises(ValueError, match="something else"):
        compacted_of(orjson.dumps(fields))


@pytest.mark.parametrize("kind", [UUID, pgproto.UUID], ids=["ours", "the driver's"])
def test_who_may_open_what_a_response_seals_is_known_to_all_replicas(kind: type[UUID]) -> None:
    spec = durable()
    binding = Binding(kind(str(ids.new_uuid())), "gpt-oss-20b", "key-1")
    spec = replace(spec, head=replace(spec.head, binding=binding))
    rebuilt = rebuild(claimed(spec))
    assert rebuilt is not None
    assert rebuilt.head == spec.head


def test_any_replica_knows_what_messages_a_response_shows() -> None:
    spec = durable()
    shown = HarmonyMessages([{"role": "user", "content": []}], with_output_ids=True)
    spec = replace(spec, head=replace(spec.head, messages=shown))
    rebuilt = rebuild(claimed(spec))
    assert rebuilt is not None
    assert rebuilt.head == spec.head


def test_a_long_echo_is_spelled_once() -> None:
    tools = [{"type": "function", "name": "f", "description": "x" * LONG_ECHO_BYTES}]
    spec = durable()
    echo = spec.head.echo | {"tools": tools}
    longer = made_of(replace(spec, head=replace(spec.head, echo=echo)))
    assert longer.head.spelled == kept_echo(echo) != b""
    assert made_of(spec).head.spelled == b""
