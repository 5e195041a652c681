"""What requests to the admin API may say, and how keys are shown."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway import ids
from gateway.admin.federation_rules import RuleCreate
from gateway.admin.identity_providers import ProviderCreate
from gateway.admin.keys import (
    AccountKeyCreate,
    ProjectKeyUpdate,
    ServiceAccountCreate,
    ShownKey,
    project_key_body,
)
from gateway.admin.limits import RateLimitUpdate
from gateway.admin.prices import PriceCreate, PriceEnd
from gateway.admin.projects import ProjectCreate, ProjectUpdate, check_supported
from gateway.admin.spend_limits import SpendLimitUpdate
from gateway.errors import InvalidRequest
from gateway.protocol.admin_bodies import deleted_body
from gateway.protocol.request_errors import validated
from gateway.tenancy import ApiKey, KeyTerms, ProjectId, ServiceAccount, TenantId
from gateway.tenancy.issuers import KeySource, discovered
from gateway.tenancy.permissions import SCOPES
from tests.fakes.admin_bodies import GOOD
from tests.fakes.cases import each

if TYPE_CHECKING:
    from gateway.protocol.base import WireModel

TENANT = TenantId(UUID(int=1))
AT = datetime(2026, 1, 1, tzinfo=UTC)
KEY = ApiKey(UUID(int=2), TENANT, "a key", "abcd", AT)
ACCOUNT = ServiceAccount(UUID(int=3), TENANT, ProjectId(UUID(int=4)), "a machine", "member", AT)


@given(st.text(max_size=300))
def test_a_name_is_one_line_that_can_be_seen(name: str) -> None:
    if name.strip() and name.isprintable() and len(name) <= 256:
        assert ProjectCreate(name=name).name == name
    else:
        with pytest.raises(ValidationError):
            ProjectCreate(name=name)


def test_what_was_deleted_is_told_by_its_kind_and_id_if_it_has_one() -> None:
    assert deleted_body("project.user", "a") == {
        "id": "a",
        "object": "project.user.deleted",
        "deleted": True,
    }
    assert deleted_body("rate_limit") == {"object": "rate_limit.deleted", "deleted": True}


def test_what_is_wrong_with_a_name_is_told_in_our_words() -> None:
    with pytest.raises(InvalidRequest) as caught:
        validated(ProjectCreate, {"name": "two\nlines"})
    assert str(caught.value) == (
        "Invalid 'name': it must have printable characters alone, and one that is no space."
    )


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ProviderCreate, GOOD[ProviderCreate] | {"description": "a\0b"}),
        (RuleCreate, GOOD[RuleCreate] | {"description": "a\0b"}),
        (PriceEnd, {"model": "m", "tier": "fast"}),
        (PriceCreate, {"model": "m", "nano_per_unit": {"output": 1}, "valid_from": 10**12}),
    ],
)
def test_what_the_database_cannot_have_is_refused(model: type[WireModel], body: Any) -> None:
    with pytest.raises(InvalidRequest):
        validated(model, body)


@each("value", [True, "5", 1.5, -1, 2**63, 10.0**30])
@each(
    ("model", "field"),
    [
        (SpendLimitUpdate, "threshold_amount"),
        (ProjectKeyUpdate, "expires_in_seconds"),
        (RateLimitUpdate, "max_requests_per_1_minute"),
    ],
)
def test_a_number_is_an_integer(model: type[WireModel], field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field):
        validated(model, GOOD[model] | {field: value})
    kept = getattr(validated(model, GOOD[model] | {field: 60.0}), field)
    assert (kept, type(kept)) == (60, int)


@each("model", list(GOOD))
def test_good_bodies_are_good(model: type[WireModel]) -> None:
    assert validated(model, GOOD[model]).model_fields_set == GOOD[model].keys()


@pytest.mark.parametrize("field", ["external_key_id", "geography", "residency"])
def test_where_the_data_of_a_project_is_kept_cannot_be_chosen(field: str) -> None:
    asked = ProjectCreate.model_validate({"name": "p", field: {} if field == "residency" else "eu"})
    with pytest.raises(InvalidRequest, match="all projects are kept in this server's database"):
        check_supported(asked)
    check_supported(ProjectCreate(name="p"))
    check_supported(ProjectUpdate(name="p"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("expires_in_seconds", 60), ("harmony", {"limits": {"max_requests_per_1_minute": 1}})],
)
def test_terms_of_a_key_are_refused_where_none_is_asked_for(name: str, value: object) -> None:
    asked = {"name": "a", name: value}
    bare = {"name": "a", "create_service_account_only": True}
    with pytest.raises(InvalidRequest, match="asks for none") as caught:
        ServiceAccountCreate.model_validate({**bare, **asked}).key()
    assert caught.value.param == name
    assert ServiceAccountCreate.model_validate(asked).key() is not None
    assert ServiceAccountCreate.model_validate(bare).key() is None


@given(st.lists(st.sampled_from(sorted(SCOPES)) | st.text(max_size=5), max_size=4))
def test_scopes_are_those_that_are_known(scopes: list[str]) -> None:
    strange = [at for at, scope in enumerate(scopes) if scope not in SCOPES]
    if not strange:
        assert AccountKeyCreate(scopes=tuple(scopes)).terms().scopes == frozenset(scopes)
        return
    with pytest.raises(InvalidRequest) as caught:
        AccountKeyCreate(scopes=tuple(scopes)).terms()
    assert caught.value.param == f"scopes[{strange[0]}]"


def terms_in(network: str) -> KeyTerms:
    return AccountKeyCreate.model_validate({"harmony": {"allowed_cidrs": [network]}}).terms()


@given(st.ip_addresses(), st.integers(0, 128))
def test_a_network_has_no_bits_behind_its_length(address: object, length: int) -> None:
    text = f"{address}/{length}"
    try:
        network = ip_network(text)
    except ValueError:
        with pytest.raises(InvalidRequest, match="it is no network") as caught:
            terms_in(text)
        assert caught.value.param == "harmony.allowed_cidrs[0]"
    else:
        assert terms_in(text).networks == (network,)


def test_a_key_has_the_owner_that_it_has() -> None:
    owned = project_key_body(ShownKey(KEY, ACCOUNT))["owner"]
    ours = project_key_body(ShownKey(KEY))["owner"]
    assert (owned["type"], owned["user"]) == ("service_account", None)
    assert owned["service_account"]["id"] == ids.service_account_id(ACCOUNT.id)
    assert (ours["type"], ours["service_account"]) == ("user", None)
    assert ours["user"]["id"] == ids.user_id(TENANT)


@given(st.text(max_size=20) | st.sampled_from(["[", "x:99999", "::1]", "h:0", "h", "h/a b", "h#a"]))
def test_an_issuer_is_a_url(text: str) -> None:
    """Whatever is sent is one that can be asked, or refused."""
    try:
        url = provider(issuer=f"https://{text}").issuer
    except ValidationError:
        return
    assert urlsplit(url).hostname
    assert url.isascii()


@each(
    "issuer",
    [
        *("https://[", "https://h:99999", "https://h:0", "ftp://h", "h"),
        *("https://user@h", "https://user:password@h/tenant", "https://@h"),
    ],
)
def test_what_is_no_url_is_no_issuer(issuer: str) -> None:
    with pytest.raises(ValidationError, match="must be a URL"):
        provider(issuer=issuer)


def test_the_keys_of_an_issuer_come_from_one_place() -> None:
    keys = {"keys": [{"kty": "RSA"}]}
    uploaded = {"type": "uploaded_jwks", "jwks": keys}
    assert provider().keys("https://h") is None
    assert provider(harmony={"jwks_url": "https://h/k"}).keys("https://h") == KeySource(
        jwks_url="https://h/k"
    )
    source = provider(verification=uploaded).keys("https://h")
    assert source is not None
    assert source.jwks == b'{"keys":[{"kty":"RSA"}]}'
    found = provider(verification={"type": "discovery"}).keys("https://h")
    assert found == discovered("https://h", None)
    with pytest.raises(InvalidRequest, match="the source of the keys already"):
        provider(verification=uploaded, harmony={"jwks_url": "https://h/k"}).keys("https://h")
    for wrong in ({}, {"keys": "x" * 70_000}, {"keys": ["x" * 70_000]}):
        with pytest.raises(InvalidRequest, match="JSON Web Key Set"):
            provider(verification=uploaded | {"jwks": wrong}).keys("https://h")


def provider(**fields: object) -> ProviderCreate:
    return ProviderCreate.model_validate(
        {"name": "sso", "type": "oidc", "issuer": "https://h", "audience": "a"} | fields
    )
