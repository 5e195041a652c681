"""What a request gets: its tier, its budget for reasoning, its sampling."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.generation import Sampling
from gateway.services.runs.spec_builder import (
    PRIORITIES,
    is_compiled,
    reasoning_budget,
    sampling_of,
    service_tier,
)
from gateway.tenancy.policy import TenantPolicy
from tests.fakes.cases import each
from tests.fakes.create_bodies import CUSTOM, FUNCTION, GRAMMAR, NAMESPACE, SCHEMA, STRICT, parse

PENALTIES: dict[str, Any] = {"presence_penalty": 0.25, "frequency_penalty": -0.5}
PLAIN, FAST = TenantPolicy(), TenantPolicy(service_tier_max="priority")


@pytest.mark.parametrize("asked", ["priority", "scale", "fast", "ultrafast"])
def test_a_faster_tier_is_for_tenants_that_may_have_it(asked: str) -> None:
    assert service_tier(parse(service_tier=asked), FAST) == "priority"
    assert service_tier(parse(service_tier=asked), PLAIN) == "default"


@pytest.mark.parametrize("asked", [None, "auto", "default"])
@pytest.mark.parametrize("policy", [PLAIN, FAST])
def test_nobody_has_another_tier_without_asking(asked: str | None, policy: TenantPolicy) -> None:
    assert service_tier(parse(service_tier=asked), policy) == "default"


def test_anybody_may_wait() -> None:
    assert service_tier(parse(service_tier="flex"), PLAIN) == "flex"


def test_better_tiers_go_first() -> None:
    ordered = [PRIORITIES[tier] for tier in ("flex", "default", "priority")]
    assert ordered == sorted(set(ordered))
    assert PRIORITIES["default"] == 0


@each(
    ("asked", "policy_tokens", "max_tokens", "budget"),
    [
        (None, 0, 1000, None),
        (100, 0, 1000, 100),
        (None, 50, 1000, 50),
        (100, 50, 1000, 100),
        (999, 0, 1012, 750),
        (999, 0, 1013, 750),
        (999, 0, 16, 3),
        (1, 0, 1, 1),
    ],
)
def test_a_budget_leaves_its_share_to_the_answer(
    asked: int | None, policy_tokens: int, max_tokens: int, budget: int | None
) -> None:
    request = parse(reasoning={"max_tokens": asked})
    policy = TenantPolicy(reasoning_budget_tokens=policy_tokens)
    granted = reasoning_budget(request, policy, max_tokens, 12)
    assert granted == budget


def test_sampling_is_what_was_asked_for_within_the_room_there_is() -> None:
    request = parse(
        temperature=0.5, top_p=0.9, seed=7, top_k=40, min_p=0.1, top_logprobs=3, **PENALTIES
    )
    assert sampling_of(request, room=500) == Sampling(
        500, 0.5, 0.9, 0.25, -0.5, seed=7, top_k=40, min_p=0.1, logprobs=3
    )
    assert sampling_of(parse(max_output_tokens=16), room=500) == Sampling(16)
    assert sampling_of(parse(max_output_tokens=600), room=500) == Sampling(500)


def test_logprobs_can_be_had_without_alternatives() -> None:
    asked = sampling_of(parse(include=["message.output_text.logprobs"]), room=1)
    assert asked.logprobs == 0


@each(
    ("body", "compiled"),
    [
        ({}, False),
        ({"tools": [FUNCTION, CUSTOM, NAMESPACE]}, False),
        ({"tools": [FUNCTION, STRICT]}, True),
        ({"tools": [GRAMMAR]}, True),
        ({"tools": [{**NAMESPACE, "tools": [STRICT]}]}, True),
        ({"tools": [STRICT], "tool_choice": "none"}, False),
        ({"text": {"format": {"type": "json_object"}}}, False),
        ({"text": {"format": SCHEMA}}, True),
    ],
)
def test_schemas_and_grammars_are_compiled(body: dict[str, Any], compiled: bool) -> None:
    assert is_compiled(parse(**body)) is compiled
