"""What output is held to is the same for a request whose like was seen before as for any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import ids
from gateway.protocol.responses.create_request import CreateResponse
from gateway.protocol.responses.response_object import echo, kept_echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.sealing import Sealer, SealingSecret
from gateway.services.models import Model
from gateway.services.runs.history_source import History
from gateway.services.runs.run_builder import opens
from gateway.services.runs.spec_builder import CreateCommand, RunInput, SpecBuilder
from gateway.settings.sections import Harmony
from gateway.tenancy import Principal, TenantId
from gateway.tenancy.policy import TenantPolicy
from tests.fakes.harmony_script import harmony_of

if TYPE_CHECKING:
    from gateway.engine.run_spec import RunSpec

MODELS = st.sampled_from(
    [
        Model("m", 0, 10_000, (), "low", harmony_of("m")),
        Model("m", 0, 20_000, (), "high", harmony_of("m")),
        Model("n", 0, 10_000, (), "low", harmony_of("n")),
    ]
)
POLICIES = st.builds(
    TenantPolicy,
    reasoning_summary=st.sampled_from(["analysis", "off"]),
    service_tier_max=st.sampled_from(["default", "priority"]),
)
TENANTS = [TenantId(ids.new_uuid()), TenantId(ids.new_uuid())]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f", "description": "100 %b", "parameters": {}},
    {
        "type": "function",
        "name": "g",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        "strict": True,
    },
    {"type": "custom", "name": "c"},
    {"type": "web_search"},
]
DOCUMENTS = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "alias"]), "input": st.text(min_size=1, max_size=20)},
    optional={
        "background": st.booleans(),
        "frequency_penalty": st.just(0.5),
        "include": st.just(["reasoning.encrypted_content"]),
        "instructions": st.text(max_size=20),
        "metadata": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
        "prompt_cache_key": st.text(max_size=5),
        "safety_identifier": st.just("%s"),
        "stop": st.just("."),
        "text": st.sampled_from(
            [
                {"format": {"type": "json_object"}},
                {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
                {"verbosity": "low"},
            ]
        ),
        "tool_choice": st.sampled_from(["auto", "none"]),
        "tools": st.lists(st.sampled_from(TOOLS), max_size=2, unique_by=str),
        "user": st.text(max_size=5),
        "max_output_tokens": st.sampled_from([16, 500]),
        "parallel_tool_calls": st.booleans(),
        "reasoning": st.sampled_from([{"effort": "low"}, {"summary": "auto"}]),
        "seed": st.just(1),
        "service_tier": st.sampled_from(["flex", "priority"]),
        "stream": st.booleans(),
        "top_p": st.just(0.5),
    },
)


def builder() -> SpecBuilder:
    return SpecBuilder(
        system_message=Harmony(identity="You.", date="off"),
        cache_salt_key=b"salt",
        sealer=Sealer([SealingSecret("k", b"sixteen bytes or more")]),
    )


SHARED = builder()


@pytest.mark.slow
@given(DOCUMENTS, MODELS, POLICIES, st.sampled_from(TENANTS))
def test_a_kept_contract_is_the_request_s_own(
    document: dict[str, Any], model: Model, policy: TenantPolicy, tenant: TenantId
) -> None:
    request = CreateResponse.model_validate(document)
    run_input = RunInput(
        command=CreateCommand(
            Principal(tenant, "acme", tenant, policy), request, None, body_bytes=0, requested_at=0.0
        ),
        model=model,
        history=History(None, (), 0),
        stored={},
        uuid=tenant,
        created_at=1,
        is_opening=opens(request),
    )
    made, kept = SHARED.spec(run_input), SHARED.spec(run_input)
    assert made.rules is kept.rules
    assert made.checker is kept.checker
    alone = builder().spec(run_input)
    assert _but_for_checker(made) == _but_for_checker(alone)
    head = made.head
    assert made.rules == rules_of(head.echo)
    assert head.spelled == kept_echo(head.echo)
    assert head.echo == echo(
        request,
        model=model.id,
        default_effort=model.reasoning_effort,
        service_tier=head.echo["service_tier"],
        summaries=policy.reasoning_summary != "off",
    )


def _but_for_checker(spec: RunSpec) -> list[Any]:
    """What a run notes while it goes on, as its route, is its own."""
    names = type(spec).__dataclass_fields__
    return [getattr(spec, name) for name in names if name not in {"checker", "route"}]
