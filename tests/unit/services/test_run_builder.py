"""What of a specification is kept for the next request, and how much work one is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway import ids
from gateway.sealing import Sealer, SealingSecret
from gateway.services.models import Model
from gateway.services.runs.history_source import History
from gateway.services.runs.run_builder import opens
from gateway.services.runs.spec_builder import COMPILED_BYTES, CreateCommand, RunInput, SpecBuilder
from gateway.settings.sections import Harmony
from gateway.tenancy import Principal, ProjectTerms, TenantId
from tests.fakes.create_bodies import CUSTOM, GRAMMAR, STRICT, parse
from tests.fakes.harmony_script import harmony_of

OURS = Principal(TenantId(ids.new_uuid()), "acme", ids.new_uuid())
THEIRS = replace(OURS, tenant_id=TenantId(ids.new_uuid()))
MODEL = Model("m", 0, 100_000, (), "medium", harmony_of("m"))
BODY_BYTES = 1_000
REGEX = {**CUSTOM, "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}}
BOUND: list[dict[str, Any]] = [
    {"tools": [STRICT]},
    {"tools": [GRAMMAR]},
    {"tools": [REGEX]},
    {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}},
]
PATTERN = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^x"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(name="specs")
def new_specs() -> SpecBuilder:
    return SpecBuilder(
        system_message=Harmony(identity="You.", date="off"),
        cache_salt_key=b"salt",
        sealer=Sealer([SealingSecret("k", b"sixteen bytes or more")]),
    )


def given(principal: Principal = OURS, **fields: Any) -> RunInput:
    request = parse(**{"model": "m", "input": "hi"} | fields)
    return RunInput(
        command=CreateCommand(principal, request, None, BODY_BYTES, 0.0),
        model=MODEL,
        history=History(None, (), 0),
        stored={},
        uuid=ids.new_uuid(),
        created_at=0,
        is_opening=opens(request),
    )


@pytest.mark.parametrize("fields", BOUND)
def test_what_output_is_checked_against_is_compiled_once(
    specs: SpecBuilder, fields: dict[str, Any]
) -> None:
    assert specs.work_bytes(given(**fields)) == BODY_BYTES + COMPILED_BYTES
    first = specs.spec(given(**fields))
    assert specs.work_bytes(given(**fields)) == BODY_BYTES
    again = specs.spec(given(**fields, instructions="Count.", metadata={"a": "b"}))
    assert (first.rules, first.checker) == (again.rules, again.checker)
    assert first.rules is again.rules
    assert first.checker.is_compiled


@pytest.mark.parametrize("fields", BOUND)
def test_what_a_tenant_wrote_is_compiled_for_it_alone(
    specs: SpecBuilder, fields: dict[str, Any]
) -> None:
    ours = specs.spec(given(**fields))
    assert specs.work_bytes(given(THEIRS, **fields)) == BODY_BYTES + COMPILED_BYTES
    theirs = specs.spec(given(THEIRS, **fields))
    assert ours.rules is not theirs.rules
    assert ours.checker is not theirs.checker


def test_a_pattern_is_compiled_again(specs: SpecBuilder) -> None:
    """What it takes of memory cannot be told from its length."""
    asked = {"type": "json_schema", "name": "x", "schema": PATTERN, "strict": True}
    first = specs.spec(given(text={"format": asked}))
    assert specs.work_bytes(given(text={"format": asked})) == BODY_BYTES + COMPILED_BYTES
    again = specs.spec(given(text={"format": asked}))
    assert first.rules is again.rules
    assert first.checker is not again.checker


def test_many_grammars_are_compiled_again(specs: SpecBuilder) -> None:
    """Each takes most of a MiB, however short it is, and though they are the same."""
    tools = [{**REGEX, "name": f"c{at}"} for at in range(30)]
    first = specs.spec(given(tools=tools))
    assert specs.spec(given(tools=tools[:2])).rules is specs.spec(given(tools=tools[:2])).rules
    assert specs.spec(given(tools=tools)).rules is not first.rules


def test_requests_that_demand_nothing_share_a_checker(specs: SpecBuilder) -> None:
    first, again = specs.spec(given()), specs.spec(given(instructions="Count."))
    assert first.rules is again.rules
    assert first.checker is again.checker
    assert first.checker.is_compiled
    for fields in ({"stop": ["x"]}, {"parallel_tool_calls": False}, BOUND[0]):
        assert specs.spec(given(**fields)).checker is not first.checker


def test_what_keeps_nothing_shares_cached_prefixes_with_no_other_response(
    specs: SpecBuilder,
) -> None:
    unkept = replace(OURS, project_terms=ProjectTerms(retention_type="zero_data_retention"))
    assert unkept.keeps_nothing
    kept = specs.spec(given()).cache_salt
    salts = {specs.spec(given(unkept)).cache_salt for _ in range(2)}
    assert specs.spec(given()).cache_salt == kept
    assert len(salts | {kept}) == 3
