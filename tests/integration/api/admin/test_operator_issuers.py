"""Whose a bearer token is: by its audience, by the organization that a request names, or by what an
operator says; and issuers of the operator, whose tokens name their tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.fakes.http_client import http_client
from tests.fakes.issuer import AUDIENCE, SigningKey, running_issuer
from tests.integration.api.admin.test_federation import MODEL, exchange, organization_of, trusted
from tests.integration.api.admin.test_operators import operator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.fakes.issuer import Issuer
    from tests.integration.api.admin.conftest import AdminSite

__all__ = ("operator",)
ORG = [{"attribute": "harmony.tenant", "expression": "assertion.org"}]


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as issuer:
        yield issuer


async def whose(site: AdminSite, token: str, organization: str | bytes | None = None) -> str:
    """The project that a token acts for, or the code of its refusal."""
    named = [] if organization is None else [(b"openai-organization", encoded(organization))]
    async with site.user(token) as user:
        answer = await user.get("/v1/key", headers=named)
    if answer.status_code == 200:
        return str(answer.json()["data"]["harmony"]["project_id"])
    assert answer.status_code == 401, answer.text
    return str(answer.json()["error"]["code"])


def encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


async def until_end(events: Any) -> AsyncIterator[Any]:
    async for event in events:
        yield event
        if event.type in {"response.completed", "error"}:
            return


async def ok(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow
async def test_nobody_reserves_what_is_another_s(
    site: AdminSite, admin: openai.AsyncOpenAI, other_admin: openai.AsyncOpenAI, issuer: Issuer
) -> None:
    """An intruder that trusts the issuer and audience of another tenant first has nothing of it."""
    async with (
        trusted(other_admin, issuer, audience=AUDIENCE) as theirs,
        trusted(admin, issuer, audience=AUDIENCE) as ours,
    ):
        token = issuer.token()
        # Without a name it is nobody's: the users of one must not end up at the other.
        assert await whose(site, token) == "invalid_token"
        for name in (ours.organization, "acme"):
            assert await whose(site, token, name) == ours.project_id
        for name in (theirs.organization, "globex"):
            assert await whose(site, token, name) == theirs.project_id
        # What was said for one organization counts for no other, and for none without a name.
        assert await whose(site, token, ours.organization) == ours.project_id
        assert await whose(site, token) == "invalid_token"
        for unknown in (b"org-" + b"0" * 32, b"nobody", b"\xe9", b""):
            assert await whose(site, token, unknown) == "invalid_token"
        async with openai.AsyncOpenAI(
            api_key=token,
            organization=ours.organization,
            base_url=f"{site.gateway.url}/v1",
            max_retries=0,
        ) as client:
            made = await client.responses.create(model=MODEL, input="x")
            async with client.responses.connect() as connection:
                await connection.response.create(model=MODEL, input="x")
                assert "response.completed" in [event.type async for event in until_end(connection)]
        async with site.user(token) as user:
            path = f"/v1/responses/{made.id}"
            for name, status in ((theirs.organization, 404), (ours.organization, 200)):
                answer = await user.get(path, headers={"openai-organization": name})
                assert answer.status_code == status
        # An exchange names the provider, so it needs no header.
        async with http_client(site.gateway.url) as client_:
            answer = await client_.post("/oauth/token", json=exchange(ours, token))
            assert answer.status_code == 200, answer.text
        # One tenant has one of each.
        with pytest.raises(openai.BadRequestError, match="Another identity provider of yours"):
            async with trusted(admin, issuer, audience=AUDIENCE):
                pass


@pytest.mark.slow
async def test_an_audience_belongs_to_the_organization_that_it_names(
    site: AdminSite, admin: openai.AsyncOpenAI, other_admin: openai.AsyncOpenAI, issuer: Issuer
) -> None:
    ours, theirs = await organization_of(admin), await organization_of(other_admin)
    for audience in (ours, f"https://g/{ours}", f"{theirs} {ours}", f"{ours}{theirs}"):
        with pytest.raises(openai.BadRequestError, match="names another organization"):
            async with trusted(other_admin, issuer, audience=audience):
                pass
    # Nor can it be changed to one.
    async with trusted(other_admin, issuer, audience="https://elsewhere.example.com") as trust:
        providers = other_admin.admin.organization.workload_identity_providers
        with pytest.raises(openai.BadRequestError, match="names another organization"):
            await providers.update(trust.provider_id, audience=ours)
    async with trusted(admin, issuer, audience=ours) as trust:
        assert await whose(site, issuer.token()) == trust.project_id
        found: Any = await admin.admin.organization.workload_identity_providers.retrieve(
            trust.provider_id
        )
        assert found.harmony["tenant_told_by"] == "audience"
        # A header that names another one is a mistake, not a wish.
        assert await whose(site, issuer.token(), theirs) == "mismatched_organization"


@pytest.mark.slow
async def test_an_operator_says_whose_tokens_without_a_name_are(
    site: AdminSite,
    operator: httpx2.AsyncClient,
    admin: openai.AsyncOpenAI,
    other_admin: openai.AsyncOpenAI,
    issuer: Issuer,
) -> None:
    def path(tenant: str, provider: str, act: str) -> str:
        return f"/admin/v1/tenants/{tenant}/issuers/{provider}/{act}"

    async with (
        trusted(other_admin, issuer, audience=AUDIENCE) as theirs,
        trusted(admin, issuer, audience=AUDIENCE) as ours,
    ):
        token = issuer.token()
        confirmed = await ok(await operator.post(path("acme", ours.provider_id, "confirm")))
        assert confirmed["harmony"]["tenant_told_by"] == "operator"
        assert await whose(site, token) == ours.project_id
        assert await whose(site, token, theirs.organization) == theirs.project_id
        refused = await operator.post(path("globex", theirs.provider_id, "confirm"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "audience_taken")
        for tenant, provider in (("acme", theirs.provider_id), ("nobody", ours.provider_id)):
            unknown = await operator.post(path(tenant, provider, "confirm"))
            assert unknown.status_code == 404
        # What was confirmed is this issuer for this audience: another one is not.
        providers = admin.admin.organization.workload_identity_providers
        await providers.update(ours.provider_id, audience="https://other.example.com")
        changed: Any = await providers.update(ours.provider_id, audience=AUDIENCE)
        assert changed.harmony["tenant_told_by"] == "header"
        assert await whose(site, token) == "invalid_token"
        # What the operator takes back or its tenant deletes can be confirmed for another one.
        await ok(await operator.post(path("acme", ours.provider_id, "confirm")))
        await providers.delete(ours.provider_id)
        assert await whose(site, token) == "invalid_token"
        await ok(await operator.post(path("globex", theirs.provider_id, "confirm")))
        assert await whose(site, token) == theirs.project_id
        await ok(await operator.post(path("globex", theirs.provider_id, "withdraw")))
        assert await whose(site, token) == "invalid_token"
        listed = (await ok(await operator.get("/admin/v1/tenants/globex/issuers")))["data"]
        told = {one["id"]: one["harmony"]["tenant_told_by"] for one in listed}
        assert told[theirs.provider_id] == "header"
    async with trusted(admin, issuer, harmony={"bearer": False}) as exchanged:
        refused = await operator.post(path("acme", exchanged.provider_id, "confirm"))
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == (
            "no_bearer_tokens",
            "workload_identity_provider_id",
        )


@pytest.fixture
async def shared(operator: httpx2.AsyncClient, issuer: Issuer) -> AsyncIterator[dict[str, Any]]:
    """An issuer of the operator for `acme`, whose claims name tenant, project and roles."""
    body = {
        "name": "sso", "issuer": issuer.url, "audience": AUDIENCE, "tenants": ["acme"],
        "roles": {"reader": ["responses.read"], "user": ["api.model.request", "models.read"]},
        "attribute_transformations": [
            *ORG,
            {"attribute": "harmony.project", "expression": "assertion.project"},
            {"attribute": "harmony.role", "expression": "assertion.roles"},
        ],
    }  # fmt: skip
    made = await ok(await operator.post("/admin/v1/issuers", json=body))
    yield made
    await operator.delete(f"/admin/v1/issuers/{made['id']}")


@pytest.mark.slow
async def test_tokens_of_an_operator_s_issuer_name_their_tenant(
    site: AdminSite,
    admin: openai.AsyncOpenAI,
    other_admin: openai.AsyncOpenAI,
    issuer: Issuer,
    shared: dict[str, Any],
) -> None:
    ours, theirs = await organization_of(admin), await organization_of(other_admin)
    project = await admin.admin.organization.projects.create(name="named by a claim")
    good: dict[str, Any] = {"org": ours, "roles": ["user", "janitor"]}
    default = ours.replace("org-", "proj_")
    for claims, acts_for in (
        ({}, default),
        ({"org": "acme"}, default),
        ({"project": project.id}, project.id),
        ({"roles": "reader"}, default),
        # Whom the operator did not name cannot be named, nor what is another one's.
        ({"org": theirs}, "invalid_token"),
        ({"org": "globex"}, "invalid_token"),
        ({"org": "nobody"}, "invalid_token"),
        ({"org": "a\0b"}, "invalid_token"),
        ({"org": "a\ud800b"}, "invalid_token"),
        ({"org": [ours]}, "invalid_token"),
        ({"org": None, "harmony.tenant": ours}, "invalid_token"),
        ({"project": theirs.replace("org-", "proj_")}, "invalid_token"),
        ({"project": "proj_" + "0" * 32}, "invalid_token"),
        ({"project": ["x"]}, "invalid_token"),
        ({"roles": ["janitor"]}, "invalid_token"),
        ({"roles": None, "harmony.role": "user"}, "invalid_token"),
    ):
        token = issuer.token(**good | claims)
        assert await whose(site, token) == acts_for, claims
        # No header can say otherwise.
        named = await whose(site, token, theirs)
        assert named in {"mismatched_organization", "invalid_token"}, claims
    async with site.user(issuer.token(**good)) as user:
        shown = (await ok(await user.get("/v1/key")))["data"]["harmony"]
        assert shown["credential"] == "token"
        assert shown["scopes"] == ["api.model.request", "models.read"]
        await ok(await user.post("/v1/responses", json={"model": MODEL, "input": "x"}))
        assert (await user.get("/v1/responses/resp_1")).status_code == 403
    stranger = SigningKey.new("first").sign(issuer.claims(**good))
    assert await whose(site, stranger) == "invalid_token"
    await admin.admin.organization.projects.archive(project.id)
    assert await whose(site, issuer.token(**good, project=project.id)) == "invalid_token"


@pytest.mark.slow
async def test_an_operator_decides_whom_an_issuer_speaks_for(
    site: AdminSite,
    operator: httpx2.AsyncClient,
    admin: openai.AsyncOpenAI,
    other_admin: openai.AsyncOpenAI,
    issuer: Issuer,
    shared: dict[str, Any],
) -> None:
    theirs = (await organization_of(other_admin)).replace("org-", "proj_")
    path = f"/admin/v1/issuers/{shared['id']}"
    assert (await ok(await operator.get(path))) == shared
    assert shared in (await ok(await operator.get("/admin/v1/issuers")))["data"]
    # A tenant cannot take the operator's tokens for its own, nor say of its own that they are
    # another tenant's.
    with pytest.raises(openai.BadRequestError, match="operator of this server accepts them"):
        async with trusted(other_admin, issuer, audience=AUDIENCE):
            pass
    with pytest.raises(openai.BadRequestError, match="issuers of the operator"):
        async with trusted(other_admin, issuer, attribute_transformations=ORG):
            pass
    issuer.audience = AUDIENCE
    token = issuer.token(org="acme", roles="user")
    assert (await whose(site, token)).startswith("proj_")
    await ok(await operator.post(path, json={"tenants": ["globex"]}))
    assert await whose(site, token) == "invalid_token"
    await ok(await operator.post(path, json={"tenants": ["*"], "roles": {}}))
    assert (await whose(site, token)).startswith("proj_")
    assert await whose(site, issuer.token(org="globex")) == theirs
    await ok(await operator.post(path, json={"enabled": False}))
    assert await whose(site, token) == "invalid_token"
    await ok(await operator.delete(path))
    assert (await operator.get(path)).status_code == 404
    async with trusted(admin, issuer, audience=AUDIENCE) as trust:
        assert await whose(site, token, "acme") == trust.project_id


@pytest.mark.slow
async def test_the_operator_s_issuer_comes_before_those_of_tenants(
    site: AdminSite, operator: httpx2.AsyncClient, other_admin: openai.AsyncOpenAI, issuer: Issuer
) -> None:
    """Also where a tenant trusted it first."""
    async with trusted(other_admin, issuer, audience=AUDIENCE) as theirs:
        token = issuer.token(org="acme")
        assert await whose(site, token, "globex") == theirs.project_id
        body = {
            "name": "sso", "issuer": issuer.url, "audience": AUDIENCE, "tenants": ["acme"],
            "attribute_transformations": ORG,
        }  # fmt: skip
        made = await ok(await operator.post("/admin/v1/issuers", json=body))
        assert await whose(site, token, "globex") == "mismatched_organization"
        assert (await whose(site, token)).startswith("proj_")
        again = await operator.post("/admin/v1/issuers", json=body)
        assert (again.status_code, again.json()["error"]["code"]) == (400, "audience_taken")
        await ok(await operator.delete(f"/admin/v1/issuers/{made['id']}"))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tenants": ["nobody"]}, "tenants"),
        ({"tenants": []}, "tenants"),
        ({"attribute_transformations": []}, "attribute_transformations"),
        ({"roles": {"user": ["everything"]}}, "scopes[0]"),
        ({"roles": {"user": []}}, "roles.user"),
        ({"issuer": "ftp://x"}, "issuer"),
        ({"audience": ""}, "audience"),
    ],
)
async def test_what_an_operator_cannot_mean_is_refused(
    operator: httpx2.AsyncClient, body: dict[str, Any], param: str
) -> None:
    good = {
        "name": "sso", "issuer": "https://x.example", "audience": "a", "tenants": ["*"],
        "attribute_transformations": ORG,
    }  # fmt: skip
    answer = await operator.post("/admin/v1/issuers", json=good | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
async def test_of_the_operator_s_tokens_nothing_is_kept_where_nothing_may_be(
    site: AdminSite,
    other_admin: openai.AsyncOpenAI,
    operator: httpx2.AsyncClient,
    issuer: Issuer,
    shared: dict[str, Any],
) -> None:
    path = f"/admin/v1/issuers/{shared['id']}"
    await ok(await operator.post(path, json={"tenants": ["*"], "roles": {}}))
    controls = other_admin.admin.organization.data_retention
    await controls.update(retention_type="zero_data_retention")
    try:
        issuer.audience = AUDIENCE
        async with site.user(issuer.token(org="globex")) as user:
            body = {"model": MODEL, "input": "x", "store": True}
            assert (await ok(await user.post("/v1/responses", json=body)))["store"] is False
    finally:
        back: Any = "none"
        await controls.update(retention_type=back)
