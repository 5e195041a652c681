from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenancy.permissions import (
    NEEDS,
    OPERATOR_PERMISSIONS,
    OPERATOR_ROLES,
    PERMISSIONS,
    ROLES,
    SCOPES,
    may,
    role_of,
)
from gateway.tenancy.policy import (
    DEFAULT_POLICY,
    ModelPermissions,
    NarrowedPolicy,
    ProjectControls,
    TenantPolicy,
)

if TYPE_CHECKING:
    from gateway.tenancy.policy import ModelsMode, ServiceTierMax, ToolAccess

NAMES = st.text("ab*-", min_size=1, max_size=4)


def test_owners_may_do_all_and_readers_read_all() -> None:
    assert ROLES["owner"] == PERMISSIONS
    assert ROLES["reader"] == {one for one in PERMISSIONS if one.endswith(".read")}


def test_of_operators_the_owner_alone_decides_who_else_there_is() -> None:
    assert OPERATOR_ROLES["owner"] == OPERATOR_PERMISSIONS
    for role, granted in OPERATOR_ROLES.items():
        assert granted <= OPERATOR_PERMISSIONS
        assert role == "owner" or not any(one.startswith("operators.") for one in granted)
    assert all(one.endswith(".read") for one in OPERATOR_ROLES["support"])
    assert all(one.endswith(".read") for one in OPERATOR_ROLES["auditor"])


@pytest.mark.parametrize(
    ("scopes", "role"),
    [
        ([], "owner"),
        (["api.all.read"], "reader"),
        (["api.all"], "owner"),
        (["api.all", "api.all.read"], "owner"),
    ],
)
def test_an_admin_key_that_reads_alone_is_a_reader_s(scopes: list[str], role: str) -> None:
    assert role_of(frozenset(scopes)) == role


def test_a_key_without_scopes_may_do_all_and_one_of_a_later_release_nothing() -> None:
    for need in NEEDS:
        assert may(frozenset(), need)
        assert may(frozenset({"api.all"}), need)
        assert may(frozenset({"later.scope"}), need) == (need == "key.read")


@pytest.mark.slow
@given(st.sets(st.sampled_from(sorted(SCOPES)), min_size=1), st.sampled_from(sorted(SCOPES)))
def test_a_scope_more_takes_nothing_away(scopes: set[str], more: str) -> None:
    for need in NEEDS:
        if may(frozenset(scopes), need):
            assert may(frozenset(scopes | {more}), need)


def test_reading_changes_nothing() -> None:
    assert {need for need in NEEDS if may(frozenset({"api.all.read"}), need)} == {
        need for need in NEEDS if need.endswith(".read")
    }


@pytest.mark.slow
@given(names=st.lists(NAMES, min_size=1), listed=st.lists(NAMES))
def test_a_list_denies_what_it_would_allow(names: list[str], listed: list[str]) -> None:
    modes: tuple[ModelsMode, ModelsMode] = ("allow_list", "deny_list")
    allows, denies = (ModelPermissions(mode, tuple(listed)).allow(names) for mode in modes)
    assert allows != denies


@pytest.mark.slow
@given(
    names=st.lists(NAMES, min_size=1),
    lists=st.lists(
        st.builds(ModelPermissions, st.just("allow_list"), st.tuples(NAMES)), max_size=2
    ),
    own=NAMES,
)
def test_a_model_must_be_allowed_by_all_that_say_something(
    names: list[str], lists: list[ModelPermissions], own: str
) -> None:
    policy = TenantPolicy(models=own)
    narrowed = NarrowedPolicy.of(policy, None, *lists)
    allowed = policy.may_use(names) and all(one.allow(names) for one in lists)
    assert narrowed.may_use(iter(names)) == allowed


def test_a_policy_that_nothing_narrows_stays_itself() -> None:
    assert NarrowedPolicy.of(DEFAULT_POLICY, None) is DEFAULT_POLICY
    assert DEFAULT_POLICY.shown()["models"] == "*"


CONTROLS = st.builds(
    ProjectControls,
    st.frozensets(st.sampled_from(["web_search", "code_interpreter", "mcp"])),
    st.none() | st.lists(st.sampled_from(["flex", "fast", "ultrafast"]), unique=True).map(tuple),
    st.sampled_from(["standard", "fast", "scale"]),
)


@pytest.mark.slow
@given(CONTROLS, st.sampled_from(["allowed", "refused"]), st.sampled_from(["default", "priority"]))
def test_a_project_gives_no_more_than_its_tenant_may_have(
    controls: ProjectControls, access: ToolAccess, tier_max: ServiceTierMax
) -> None:
    policy = TenantPolicy(
        web_search=access, code_interpreter=access, mcp=access, service_tier_max=tier_max
    )
    narrowed = NarrowedPolicy.of(policy, controls=controls)
    for tool in ("web_search", "code_interpreter", "mcp"):
        gives = access == "allowed" and tool not in controls.tools_off
        assert (getattr(narrowed, tool) == "allowed") == gives
    gives_faster = controls.tiers is None or bool({"fast", "ultrafast"} & set(controls.tiers))
    assert (narrowed.service_tier_max == "priority") == (tier_max == "priority" and gives_faster)
    assert narrowed.may_wait == (controls.tiers is None or "flex" in controls.tiers)
    assert narrowed.tier_default == controls.tier_default
    assert (narrowed is policy) == (controls == ProjectControls())
    assert (policy.may_wait, policy.tier_default) == (True, "standard")
