"""What is made of the claims of a token, for all claims and rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ids import tenant_id
from gateway.tenancy import KeyTerms, Principal, TenantId
from gateway.tenancy.issuers import (
    ANY_TENANT,
    END_USER,
    END_USER_CHARS_MAX,
    PROJECT,
    ROLE,
    SCOPES_GRANTED,
    TENANT,
    IdentityProvider,
    Transformation,
    attributes_of,
    end_user_of,
    matches,
    narrowed,
    organizations_named,
    path_of,
    scopes_granted,
    text_of,
)
from gateway.tenancy.permissions import NEEDS, SCOPES, may
from tests.fakes.cases import each

NOW = datetime.now(UTC)
PROVIDER = IdentityProvider(
    id=UUID(int=1), tenant_id=TenantId(UUID(int=0)), name="sso", issuer="https://sso.example.com",
    audience="gateway", created_at=NOW, updated_at=NOW,
)  # fmt: skip
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="'\""), min_size=1, max_size=8)
VALUES = st.text(max_size=8) | st.booleans() | st.integers() | st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
CLAIMS = st.dictionaries(NAMES, JSON, max_size=5)
SCOPE_SETS = st.frozensets(st.sampled_from(sorted(SCOPES)), max_size=4)


def nested(names: list[str], value: Any) -> Any:
    for name in reversed(names):
        value = {name: value}
    return value


@pytest.mark.slow
@given(st.lists(NAMES, min_size=1, max_size=4), VALUES, st.sampled_from("'\""))
def test_an_expression_finds_the_claim_that_it_leads_to(
    names: list[str], value: Any, quote: str
) -> None:
    expression = "assertion" + "".join(f"[{quote}{name}{quote}]" for name in names)
    assert path_of(expression) == tuple(names)
    made = [Transformation("found", expression)]
    assert attributes_of(nested(names, value), made)["found"] == value
    assert "found" not in attributes_of({}, made)
    assert "found" not in attributes_of(nested(names[:-1], "leaf") if names[1:] else {}, made)


@given(st.text(max_size=30))
def test_an_expression_is_read_whole_or_refused(expression: str) -> None:
    try:
        names = path_of(expression)
    except ValueError:
        assert "found" not in attributes_of(
            {"a": 1, expression: 1}, [Transformation("found", expression)]
        )
    else:
        assert names
        assert expression.startswith("assertion")


@each(
    ("expression", "names"),
    [
        ("assertion.repository", ("repository",)),
        ("assertion['kubernetes.io'].namespace", ("kubernetes.io", "namespace")),
        ('assertion.a["b"]', ("a", "b")),
        ("assertion", None),
        ("assertion.", None),
        ("assertion.a b", None),
        ("assertion.a == 'b'", None),
        ("assertion['a'", None),
        ("assertion['']", None),
        ("assertion" + ".a" * 300, None),
        ("assertions.a", None),
        ("", None),
    ],
)
def test_expressions(expression: str, names: tuple[str, ...] | None) -> None:
    if names is None:
        with pytest.raises(ValueError, match=r"must be|cannot be read"):
            path_of(expression)
    else:
        assert path_of(expression) == names


@pytest.mark.slow
@given(CLAIMS, CLAIMS, st.dictionaries(NAMES, VALUES, max_size=3))
def test_more_claims_never_match_less_and_more_matchers_never_more(
    claims: dict[str, Any], others: dict[str, Any], matchers: dict[str, Any]
) -> None:
    attributes = attributes_of(claims, ())
    all_of_them = attributes_of({**others, **claims}, ())
    if matches(matchers, attributes):
        assert matches(matchers, all_of_them)
        for name in matchers:
            fewer = {kept: value for kept, value in matchers.items() if kept != name}
            assert matches(fewer, attributes) == bool(fewer)
    assert not matches({}, attributes)


@pytest.mark.slow
@given(CLAIMS, NAMES, VALUES)
def test_a_rule_matches_the_value_itself_and_a_list_that_has_it(
    claims: dict[str, Any], name: str, value: Any
) -> None:
    rule = {name: value}
    assert matches(rule, attributes_of({**claims, name: value}, ()))
    assert matches(rule, attributes_of({**claims, name: ["other", value]}, ()))
    assert not matches(rule, attributes_of({**claims, name: {"value": value}}, ()))
    assert not matches(rule, attributes_of({**claims, name: None}, ()))


def test_equality_is_that_of_json() -> None:
    assert matches({"a": 1}, {"a": 1.0})
    assert not matches({"a": 1}, {"a": True})
    assert not matches({"a": True}, {"a": 1})
    assert not matches({"a": "1"}, {"a": 1})
    assert not matches({"a": "true"}, {"a": True})


@pytest.mark.slow
@given(SCOPE_SETS, SCOPE_SETS | st.none(), st.booleans())
def test_a_token_never_has_more_than_its_rule_gives(
    scopes: frozenset[str], claimed: frozenset[str] | None, is_list: bool
) -> None:
    words = sorted(claimed or ())
    given_ = {} if claimed is None else {
        SCOPES_GRANTED: ("openid", *words) if is_list else " ".join(("openid", *words))
    }  # fmt: skip
    granted = scopes_granted(scopes, given_)
    if claimed is None:
        assert granted == scopes
        return
    assert granted is None or granted  # empty would be everything
    for need in NEEDS:
        if granted is not None and may(granted, need):
            assert may(scopes, need)
    assert narrowed(scopes, claimed) == granted


@pytest.mark.slow
@given(CLAIMS)
def test_claims_cannot_take_the_names_that_mean_something(claims: dict[str, Any]) -> None:
    own = {END_USER, SCOPES_GRANTED, TENANT, PROJECT, ROLE}
    attributes = attributes_of({**claims, **dict.fromkeys(own, "mallory")}, ())
    assert not own & attributes.keys()


ROLES_ = st.dictionaries(
    NAMES, st.lists(st.sampled_from(sorted(SCOPES)), min_size=1, max_size=3).map(tuple), max_size=3
)


@pytest.mark.slow
@given(ROLES_, st.lists(NAMES, max_size=3), SCOPE_SETS | st.none(), st.booleans())
def test_a_token_has_what_its_roles_have_and_no_more(
    roles: dict[str, tuple[str, ...]],
    named: list[str],
    claimed: frozenset[str] | None,
    is_list: bool,
) -> None:
    issuer = replace(PROVIDER, tenants=("acme",), roles=roles)
    attributes: dict[str, Any] = {}
    if is_list:
        attributes[ROLE] = tuple(named)
    elif named:
        attributes[ROLE], named = named[0], named[:1]
    else:
        named = []
    if claimed is not None:
        attributes[SCOPES_GRANTED] = tuple(claimed)
    scopes = issuer.scopes(attributes)
    held = frozenset(scope for name in named for scope in roles.get(name, ()))
    if roles and not held:
        assert scopes is None
    else:
        assert scopes == scopes_granted(held, attributes)
        assert scopes is None or not held or scopes <= held
        assert scopes or claimed is not None or not roles, "empty would be everything"


@pytest.mark.slow
@given(st.text(max_size=20), st.lists(st.uuids(), max_size=2), st.text("0123456789abcdef/-"))
def test_an_audience_names_the_organizations_whose_ids_stand_in_it(
    before: str, uuids: list[UUID], behind: str
) -> None:
    ids_ = [tenant_id(uuid) for uuid in uuids]
    audience = before + "".join(f"/{one}" for one in ids_) + f"/{behind}"
    assert organizations_named(audience) >= set(ids_)
    provider = replace(PROVIDER, audience=audience)
    assert provider.tenant_binding is None
    bearer = replace(provider, bearer=True)
    told = replace(bearer, unnamed_bearer=True).tenant_binding
    if ids_:
        assert (bearer.tenant_binding, told) == ("audience", "audience")
    elif not organizations_named(audience):
        assert (bearer.tenant_binding, told) == ("header", "operator")


@pytest.mark.parametrize(
    "text", ["", "org-", "org-" + "a" * 31, "org-" + "a" * 33, "ORG-" + "a" * 32]
)
def test_what_is_no_id_of_an_organization_names_none(text: str) -> None:
    assert organizations_named(f"https://gateway.example.com/{text}") == frozenset()


def test_an_issuer_speaks_for_whom_the_operator_named() -> None:
    assert replace(PROVIDER, tenants=("acme",)).speaks_for("acme")
    assert not replace(PROVIDER, tenants=("acme",)).speaks_for("globex")
    assert replace(PROVIDER, tenants=(ANY_TENANT,)).speaks_for("globex")
    assert not PROVIDER.speaks_for("acme")


@pytest.mark.parametrize("value", ["", 7, True, ("acme",), None])
def test_only_one_text_names_a_tenant(value: Any) -> None:
    assert text_of({} if value is None else {TENANT: value}, TENANT) is None
    assert text_of({TENANT: "acme"}, TENANT) == "acme"


def test_whom_a_token_is_for() -> None:
    assert end_user_of({"sub": "alice"}) == "alice"
    assert end_user_of({"sub": 7}) == "7"
    assert end_user_of({"sub": ""}) is None
    assert end_user_of({}) is None
    assert end_user_of({"sub": ("a", "b")}) is None
    assert end_user_of({"sub": "alice", END_USER: "a@example.com"}) == "a@example.com"
    assert len(end_user_of({"sub": "a" * 5_000}) or "") == END_USER_CHARS_MAX


def test_the_wall_of_a_principal_is_its_project_unless_its_tenant_says_otherwise() -> None:
    tenant = TenantId(UUID(int=1))
    principal = Principal(tenant, "acme", UUID(int=2), key=KeyTerms())
    assert principal.wall == principal.project == tenant
    shared = replace(principal.policy, projects_share_responses="allowed")
    assert replace(principal, policy=shared).wall is None
