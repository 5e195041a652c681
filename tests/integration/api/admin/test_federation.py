"""Tokens of issuers: as bearers, and exchanged. Real keys, a real issuer, OpenAI's SDK."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai.auth import WorkloadIdentityAuth

from gateway import ids
from gateway.admin.limits import LimitOwner, Limits
from tests.fakes.http_client import http_client
from tests.fakes.issuer import AUDIENCE, Issuer, SigningKey, running_issuer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.integration.api.admin.conftest import AdminSite

MODEL = "gpt-oss-20b"
STRANGER = SigningKey.new("first")


@dataclass(frozen=True)
class Trust:
    """An issuer that `acme` trusts, with a rule for one of its service accounts."""

    issuer: Issuer
    provider_id: str
    rule_id: str
    project_id: str
    account_id: str
    organization: str


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as issuer:
        yield issuer


@asynccontextmanager
async def trusted(
    admin: openai.AsyncOpenAI,
    issuer: Issuer,
    *,
    matchers: dict[str, Any] | None = None,
    scopes: list[str] | None = None,
    audience: str | None = None,
    **provider: Any,
) -> AsyncIterator[Trust]:
    """The audience names the tenant, unless another one is given."""
    organization, named = admin.admin.organization, await organization_of(admin)
    issuer.audience = audience or f"{AUDIENCE}/{named}"
    project = await organization.projects.create(name="end users")
    account = await organization.projects.service_accounts.create(project.id, name="app")
    extra = {"bearer": True, **provider.pop("harmony", {})}
    made = await organization.workload_identity_providers.create(
        name="sso", type="oidc", issuer=issuer.url, audience=issuer.audience,
        extra_body={"harmony": extra}, **provider,
    )  # fmt: skip
    permissions: Any = {"type": "restricted", "scopes": scopes} if scopes else None
    rule = await organization.workload_identity_providers.federation_rules.create(
        made.id,
        attribute_matchers=matchers or {"iss": issuer.url},
        project_id=project.id,
        service_account_id=account.id,
        permissions=permissions or openai.omit,
    )
    yield Trust(issuer, made.id, rule.id, project.id, account.id, named)


async def organization_of(admin: openai.AsyncOpenAI) -> str:
    """The id of the tenant, which its default project has, too."""
    first = (await admin.admin.organization.projects.list(limit=1)).data[0]
    assert first.name == "Default project"
    return "org-" + first.id.removeprefix("proj_")


@pytest.fixture
async def trust(admin: openai.AsyncOpenAI, issuer: Issuer) -> AsyncIterator[Trust]:
    async with trusted(admin, issuer) as trust:
        yield trust


async def status(site: AdminSite, token: str, path: str = "/v1/key") -> int:
    async with site.user(token) as user:
        return (await user.get(path)).status_code


async def refusal(site: AdminSite, token: str) -> str:
    """Why it is refused."""
    async with site.user(token) as user:
        answer = await user.get("/v1/key")
    assert answer.status_code == 401, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_token"
    return str(error["message"])


def exchange(trust: Trust, token: str, **changed: Any) -> dict[str, Any]:
    return {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "identity_provider_id": trust.provider_id,
        "service_account_id": trust.account_id,
        **changed,
    }


async def exchanged(site: AdminSite, trust: Trust, token: str) -> str:
    async with http_client(site.gateway.url) as client:
        answer = await client.post("/oauth/token", json=exchange(trust, token))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])


async def test_an_end_user_calls_with_a_token_of_an_issuer(site: AdminSite, trust: Trust) -> None:
    token = trust.issuer.token()
    async with openai.AsyncOpenAI(
        api_key=token, base_url=f"{site.gateway.url}/v1", max_retries=0
    ) as client:
        made = await client.responses.create(model=MODEL, input="x")
        assert (await client.responses.retrieve(made.id)).id == made.id
        chat = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}]
        )
        assert chat.choices[0].message.content
        async with client.responses.connect() as connection:
            await connection.response.create(model=MODEL, input="x")
            async for event in connection:
                if event.type == "response.completed":
                    break
    async with site.user(token) as user:
        shown = (await user.get("/v1/key")).json()["data"]
    assert shown["harmony"]["project_id"] == trust.project_id
    assert shown["harmony"]["credential"] == "token"
    assert shown["is_management_key"] is False
    assert shown["expires_at"] is not None
    # The keys were fetched once for all of it.
    assert trust.issuer.asked == ["/.well-known/openid-configuration", "/keys"]


@pytest.mark.slow
async def test_the_subject_is_the_end_user_of_the_usage(
    site: AdminSite, trust: Trust, admin: openai.AsyncOpenAI
) -> None:
    for subject, named in (("alice", "mallory"), ("alice", None), ("bob", None)):
        async with site.user(trust.issuer.token(sub=subject)) as user:
            asked = {"model": MODEL, "input": "x", "safety_identifier": named}
            same = {"idempotency-key": f"{trust.rule_id}-{named}"}
            durable = {**asked, "background": True, "stream": True}
            made = await user.post("/v1/responses", json=durable if named else asked, headers=same)
            assert made.status_code == 200, made.text
            assert "response.completed" in made.text or not named
    usage: Any = await admin.admin.organization.usage.completions(
        start_time=int(time.time()) - 3600,
        project_ids=[trust.project_id],
        extra_query={"group_by[]": "harmony.end_user"},
    )
    found = {
        one.harmony["end_user"]: one.num_model_requests
        for bucket in usage.data
        for one in bucket.results
    }
    assert sorted(found.values()) == [1, 2]
    assert "alice" not in str(found)


@pytest.mark.slow
async def test_limits_of_project_and_rule_hold_for_tokens(
    site: AdminSite, trust: Trust, admin: openai.AsyncOpenAI
) -> None:
    limits = Limits(site.gateway.process.foundation.database)
    tenant_id = await limits.tenant("acme")
    rule = ids.parse_federation_rule_id(trust.rule_id)
    assert rule is not None
    await limits.set_limits(LimitOwner(tenant_id, "key", rule), {("requests", 60): 2})
    site.gateway.process.access.forget()
    asked = {"model": MODEL, "input": "x", "store": False}
    statuses = []
    for subject in ("alice", "bob", "carol"):
        async with site.user(trust.issuer.token(sub=subject)) as user:
            statuses.append((await user.post("/v1/responses", json=asked)).status_code)
    assert statuses == [200, 200, 429]
    await limits.set_limits(LimitOwner(tenant_id, "key", rule), {("requests", 60): None})
    rate_limits = admin.admin.organization.projects.rate_limits
    await rate_limits.update_rate_limit(
        f"rl-{MODEL}", project_id=trust.project_id, max_requests_per_1_minute=1
    )
    other = await exchanged(site, trust, trust.issuer.token())
    async with site.user(other) as user:
        answers = [await user.post("/v1/responses", json=asked) for _ in range(2)]
    assert answers[1].status_code == 429
    assert trust.project_id in answers[1].json()["error"]["message"]


def unsigned(claims: dict[str, Any], header: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    """A token whose signature is not made by a library, which would refuse to."""

    def part(content: bytes) -> bytes:
        return base64.urlsafe_b64encode(content).rstrip(b"=")

    head = part(json.dumps(header).encode()) + b"." + part(json.dumps(claims).encode())
    return (head + b"." + part(sign(head))).decode()


def forged(issuer: Issuer) -> dict[str, str]:
    """Tokens that are not this issuer's for us, by what is wrong with them."""
    key, claims, now = issuer.keys[0], issuer.claims(), int(time.time())
    secret = key.public_pem
    signed = issuer.token()
    head, body, signature = signed.split(".")
    other = issuer.token(sub="mallory").split(".")[1]
    hs256 = {"alg": "HS256", "kid": key.id, "typ": "JWT"}
    return {
        "expired": issuer.token(iat=now - 600, exp=now - 120),
        "not yet": issuer.token(nbf=now + 300),
        "issued in the future": issuer.token(iat=now + 300, exp=now + 600),
        "lives too long": issuer.token(exp=now + 7200),
        "endless": issuer.token(exp=None),
        "endless by number": unsigned(
            issuer.claims(exp=float("inf")), {"alg": "ES256", "kid": key.id}, lambda _: b""
        ),
        "no subject": issuer.token(sub=None),
        "no time": issuer.token(iat=None),
        "other audience": issuer.token(aud="https://elsewhere.example.com"),
        "no audience": issuer.token(aud=None),
        "other issuer": issuer.token(iss="https://elsewhere.example.com"),
        "issuer with NUL": issuer.token(iss="a\0b"),
        "issuer with half a character": issuer.token(iss="a\ud800b"),
        "audience with NUL": issuer.token(aud=[issuer.audience, "a\0b"]),
        "audience with half a character": issuer.token(aud="a\ud800b"),
        "other key of the same id": STRANGER.sign(claims),
        "unknown key": SigningKey.new("unknown").sign(claims),
        "no key": unsigned(claims, {"alg": "ES256"}, lambda _: b""),
        "key is no text": unsigned(claims, {"alg": "ES256", "kid": 7}, lambda _: b""),
        "alg none": unsigned(claims, {"alg": "none", "kid": key.id}, lambda _: b""),
        "alg None": unsigned(claims, {"alg": "nOnE", "kid": key.id}, lambda _: b""),
        "HS256 with the public key": unsigned(
            claims, hs256, lambda head: hmac.digest(secret, head, hashlib.sha256)
        ),
        "HS256 with the public key, without line end": unsigned(
            claims, hs256, lambda head: hmac.digest(secret.strip(), head, hashlib.sha256)
        ),
        "key of its own": key.sign(claims, jwk=STRANGER.jwk, jku="http://127.0.0.1:1/keys")
        .rpartition(".")[0] + "." + STRANGER.sign(claims).rpartition(".")[2],
        "other claims": f"{head}.{other}.{signature}",
        "no signature": f"{head}.{body}.",
        "huge": issuer.token(filler="x" * 20_000),
        "deep": "eyJhbGciOiJFUzI1NiJ9." + base64.urlsafe_b64encode(b"[" * 9_000).decode() + ".AAAA",
        "no JSON": "eyJ.eyJ.eyJ",
        "odd claims": key.sign({**claims, "aud": [issuer.audience, 7]}),
    }  # fmt: skip


@pytest.mark.slow
async def test_what_the_issuer_did_not_sign_for_us_is_refused(
    site: AdminSite, trust: Trust
) -> None:
    assert await status(site, trust.issuer.token()) == 200
    for what, token in forged(trust.issuer).items():
        said = await refusal(site, token)
        assert "No rule" not in said, what
        assert what.partition(" ")[0] != "expired" or "expired" in said
        assert token[-20:] not in said, what
        async with http_client(site.gateway.url) as client:
            answer = await client.post("/oauth/token", json=exchange(trust, token))
        assert answer.status_code == 400, (what, answer.text)
        assert set(answer.json()) == {"error", "error_description"}, what
    assert await status(site, trust.issuer.token()) == 200


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES256", "EdDSA"])
async def test_keys_of_each_kind(
    site: AdminSite, admin: openai.AsyncOpenAI, algorithm: str
) -> None:
    async with (
        running_issuer(SigningKey.new("only", algorithm)) as issuer,
        trusted(admin, issuer, harmony={"algorithms": [algorithm]}),
    ):
        assert await status(site, issuer.token()) == 200
        other = "EdDSA" if algorithm == "ES256" else "ES256"
        issuer.keys.insert(0, SigningKey.new("another", other))
        assert "not allowed" in await refusal(site, issuer.token())


async def test_a_weak_key_is_none(site: AdminSite, admin: openai.AsyncOpenAI) -> None:
    with pytest.warns(UserWarning, match="below the minimum"):
        async with (
            running_issuer(SigningKey.new("weak", "RS256", bits=1024)) as issuer,
            trusted(admin, issuer),
        ):
            assert "does not list" in await refusal(site, issuer.token())


@pytest.mark.slow
async def test_keys_are_rotated_and_outlive_their_issuer(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    async with running_issuer() as issuer, trusted(admin, issuer) as trust:
        old = issuer.token()
        assert await status(site, old) == 200
        issuer.keys.insert(0, SigningKey.new("second"))
        assert await status(site, issuer.token()) == 200
        assert issuer.asked.count("/keys") == 2
        issuer.status = 500
        assert await status(site, issuer.token(sub="carol")) == 200
        issuer.keys.insert(0, SigningKey.new("third"))
        assert "does not list" in await refusal(site, issuer.token())
        issuer.status = 200
        # Whoever signs with the key that is gone can do so no more.
        issuer.keys = [issuer.keys[0]]
        assert await status(site, issuer.token(jti="new")) == 200
        stale = SigningKey("first", "ES256", STRANGER.private).sign(issuer.claims())
        assert "does not list" in await refusal(site, stale)
    assert await status(site, trust.issuer.token(jti="after its end")) == 200


@pytest.mark.slow
async def test_an_issuer_that_does_not_answer_is_no_fault_of_the_token(
    site: AdminSite, admin: openai.AsyncOpenAI
) -> None:
    async with running_issuer() as issuer, trusted(admin, issuer) as trust:
        wrong: list[dict[str, Any]] = [
            {"status": 503},
            {"configuration": {"issuer": "https://elsewhere.example.com"}},
            {"configuration": {"jwks_uri": "http://10.0.0.1/keys"}},
            {"configuration": {"jwks_uri": None}},
            {"body": b"{" + b" " * 300_000},
            {"body": b"[]"},
        ]
        good = dict(issuer.__dict__)
        for fault in wrong:
            vars(issuer).update(good | fault)
            async with site.user(issuer.token()) as user:
                answer = await user.get("/v1/key")
            assert answer.status_code == 503, (fault, answer.text)
            assert answer.json()["error"]["code"] == "issuer_unavailable"
            assert int(answer.headers["retry-after"]) >= 1
            async with http_client(site.gateway.url) as client:
                answer = await client.post("/oauth/token", json=exchange(trust, issuer.token()))
            assert (answer.status_code, answer.json()["error"]) == (503, "temporarily_unavailable")
        vars(issuer).update(good)
        assert await status(site, issuer.token()) == 200


@pytest.mark.slow
async def test_claims_choose_project_and_scopes(
    site: AdminSite, admin: openai.AsyncOpenAI, issuer: Issuer
) -> None:
    transformations = [
        {"attribute": "team", "expression": "assertion['https://example.com/org'].team"},
        {"attribute": "harmony.scopes", "expression": "assertion.scope"},
        {"attribute": "harmony.end_user", "expression": "assertion.email"},
    ]
    async with trusted(
        admin, issuer, matchers={"team": "ml", "groups": "llm"},
        attribute_transformations=transformations,
        scopes=["responses.read", "models.read"],
    ):  # fmt: skip
        org = "https://example.com/org"
        good: dict[str, Any] = {org: {"team": "ml"}, "groups": ["a", "llm"]}
        assert await status(site, issuer.token(**good), "/v1/models") == 200
        for other in ({org: {"team": "hr"}}, {"groups": ["a"]}, {org: "ml"}, {"groups": None}):
            assert "rule" in await refusal(site, issuer.token(**good | other))
        narrowed = issuer.token(**good, scope="openid models.read api.all")
        async with site.user(narrowed) as user:
            assert (await user.get("/v1/models")).status_code == 200
            assert (await user.get("/v1/responses/resp_1")).status_code == 403
            assert (await user.get("/v1/key")).json()["data"]["harmony"]["scopes"] == [
                "models.read"
            ]
        # Empty scopes would be all.
        assert "rule" in await refusal(site, issuer.token(**good, scope="openid"))


async def test_a_workload_exchanges_its_token_with_the_sdk(site: AdminSite, trust: Trust) -> None:
    auth = WorkloadIdentityAuth(
        workload_identity={
            "identity_provider_id": trust.provider_id,
            "service_account_id": trust.account_id,
            "provider": {"token_type": "jwt", "get_token": trust.issuer.token},
        },
        token_exchange_url=f"{site.gateway.url}/oauth/token",
    )
    async with openai.AsyncOpenAI(
        api_key=auth.get_token_async, base_url=f"{site.gateway.url}/v1", max_retries=0
    ) as client:
        made = await client.responses.create(model=MODEL, input="x")
        assert (await client.responses.retrieve(made.id)).id == made.id
    token = await auth.get_token_async()
    assert token.startswith("sk-wif-")
    async with site.user(token) as user:
        shown = (await user.get("/v1/key")).json()["data"]
    assert shown["harmony"]["credential"] == "exchanged"
    # It ends with the token that it was given for, not later.
    assert int(trust.issuer.claims()["exp"]) - 5 < _seconds(shown["expires_at"]) < time.time() + 605
    for changed in (token[:-2] + "AA", token[:-40], "sk-wif-", "sk-wif-hgw1.AAAA"):
        assert "not issued here" in await refusal(site, changed)


def _seconds(moment: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(moment).timestamp()


@pytest.mark.slow
async def test_the_sdk_understands_why_it_gets_no_token(site: AdminSite, trust: Trust) -> None:
    async def asked(**changed: Any) -> openai.OAuthError:
        auth = WorkloadIdentityAuth(
            workload_identity={
                "identity_provider_id": trust.provider_id,
                "service_account_id": trust.account_id,
                "provider": {"token_type": "jwt", "get_token": trust.issuer.token},
                **changed,  # type: ignore[typeddict-item]
            },
            token_exchange_url=f"{site.gateway.url}/oauth/token",
        )
        with pytest.raises(openai.OAuthError) as caught:
            await auth.get_token_async()
        return caught.value

    stranger = {"token_type": "jwt", "get_token": lambda: STRANGER.sign(trust.issuer.claims())}
    assert (await asked(provider=stranger)).error == "invalid_subject_token"
    for unknown in ({"identity_provider_id": "widp_" + "0" * 32}, {"service_account_id": "x"}):
        error = await asked(**unknown)
        assert error.error == "invalid_grant"
        assert "attribute_matchers" in str(error)


@pytest.mark.slow
async def test_the_token_endpoint_takes_forms_and_assertions(site: AdminSite, trust: Trust) -> None:
    form = exchange(trust, trust.issuer.token())
    assertion = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": trust.issuer.token(),
        "identity_provider_id": trust.provider_id,
        "service_account_id": trust.account_id,
    }
    async with http_client(site.gateway.url) as client:
        for fields in (form, assertion):
            answer = await client.post("/oauth/token", data=fields)
            assert answer.status_code == 200, answer.text
            assert answer.headers["cache-control"] == "no-store"
            body = answer.json()
            assert (body["token_type"], body["issued_token_type"]) == (
                "Bearer", "urn:ietf:params:oauth:token-type:access_token",
            )  # fmt: skip
            assert 0 < body["expires_in"] <= 600
            assert await status(site, body["access_token"]) == 200
        for wrong, error in (
            ({**form, "grant_type": "password"}, "unsupported_grant_type"),
            ({**form, "grant_type": None}, "invalid_request"),
            ({**form, "subject_token_type": "urn:x"}, "invalid_request"),
            ({**form, "subject_token": ["a"]}, "invalid_request"),
            ([], "invalid_request"),
        ):
            answer = await client.post("/oauth/token", json=wrong)
            assert (answer.status_code, answer.json()["error"]) == (400, error)
        for content in (b"", b"{", b"\xff", b"x" * 100_000):
            answer = await client.post("/oauth/token", content=content)
            assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
        assert (await client.get("/oauth/token")).status_code == 405


@pytest.mark.slow
async def test_what_was_exchanged_ends_with_its_rule(
    site: AdminSite, admin: openai.AsyncOpenAI, issuer: Issuer
) -> None:
    providers = admin.admin.organization.workload_identity_providers
    rules = providers.federation_rules
    async with trusted(admin, issuer) as trust:
        tokens = [issuer.token(), await exchanged(site, trust, issuer.token())]

        async def all_are(wanted: int) -> None:
            assert [await status(site, token) for token in tokens] == [wanted] * len(tokens)

        await all_are(200)
        named: Any = {"workload_identity_provider_id": trust.provider_id}
        await rules.update(trust.rule_id, **named, enabled=False)
        await all_are(401)
        await rules.update(trust.rule_id, **named, enabled=True)
        await all_are(200)
        await providers.update(trust.provider_id, enabled=False)
        await all_are(401)
        await providers.update(trust.provider_id, enabled=True)
        # What its rule gives no more, a token has no more.
        restricted: Any = {"type": "restricted", "scopes": ["responses.read"]}
        await rules.update(trust.rule_id, **named, permissions=restricted)
        assert [await status(site, token, "/v1/models") for token in tokens] == [403, 403]
        accounts = admin.admin.organization.projects.service_accounts
        await accounts.delete(trust.account_id, project_id=trust.project_id)
        await all_are(401)


@pytest.mark.slow
async def test_the_sdk_manages_providers_and_rules(
    admin: openai.AsyncOpenAI, other_admin: openai.AsyncOpenAI, issuer: Issuer
) -> None:
    providers = admin.admin.organization.workload_identity_providers
    rules = providers.federation_rules
    async with trusted(admin, issuer) as trust:
        found = await providers.retrieve(trust.provider_id)
        assert (found.issuer, found.audience) == (issuer.url, issuer.audience)
        assert found.type == "oidc"
        assert found.verification.type == "discovery"
        assert trust.provider_id in [one.id async for one in providers.list(limit=2)]
        moved = await providers.update(trust.provider_id, issuer="https://new.example.com/sso/")
        assert moved.verification.type == "discovery"
        assert moved.verification.discovery_url == (
            "https://new.example.com/sso/.well-known/openid-configuration"
        )
        await providers.update(trust.provider_id, issuer=issuer.url)
        uploaded: Any = {"type": "uploaded_jwks", "jwks": issuer.jwks}
        changed = await providers.update(trust.provider_id, name="keys", verification=uploaded)
        assert (changed.name, changed.verification.type) == ("keys", "uploaded_jwks")
        described = await providers.update(trust.provider_id, description="of the office")
        assert (described.name, described.description) == ("keys", "of the office")
        assert (await providers.update(trust.provider_id, description=None)).description is None
        named: Any = {"workload_identity_provider_id": trust.provider_id}
        texts: Any = {"name": "staff", "description": "of the office"}
        rule = await rules.update(trust.rule_id, **named, **texts)
        assert (rule.name, rule.description) == ("staff", "of the office")
        rule = await rules.update(trust.rule_id, **named, name=None, description=None)
        assert (rule.name, rule.description) == (None, None)
        rule = await rules.retrieve(trust.rule_id, **named)
        assert rule.attribute_matchers == {"iss": issuer.url}
        assert rule.permissions.type == "service_account_default"
        listed = [one.id async for one in rules.list(trust.provider_id)]
        assert listed == [trust.rule_id]
        # What is another tenant's is answered as what is not there.
        others = other_admin.admin.organization.workload_identity_providers
        for ask in (
            lambda: others.retrieve(trust.provider_id),
            lambda: others.update(trust.provider_id, name="mine"),
            lambda: others.delete(trust.provider_id),
            lambda: others.federation_rules.retrieve(trust.rule_id, **named),
        ):
            with pytest.raises(openai.NotFoundError):
                await ask()
        deleted = await rules.delete(trust.rule_id, **named)
        assert (deleted.deleted, deleted.object) == (
            True, "organization.workload_identity_federation_rule.deleted",
        )  # fmt: skip
        gone = await providers.delete(trust.provider_id)
        assert gone.object == "organization.workload_identity_provider.deleted"
        log: Any = await admin.admin.organization.audit_logs.list(limit=100)
        types = {one.type for one in log.data}
        assert {
            f"workload_identity_provider.{act}" for act in ("created", "updated", "deleted")
        } <= types
        assert "workload_identity_provider_mapping.created" in types


@pytest.mark.slow
async def test_an_issuer_of_one_tenant_makes_nobody_of_another(
    site: AdminSite, admin: openai.AsyncOpenAI, other_admin: openai.AsyncOpenAI, issuer: Issuer
) -> None:
    providers = admin.admin.organization.workload_identity_providers
    async with (
        trusted(admin, issuer) as trust,
        trusted(other_admin, issuer, audience=issuer.audience, harmony={"bearer": False}) as theirs,
    ):
        # The other tenant cannot have the first one's bearers call in its own name.
        others_providers = other_admin.admin.organization.workload_identity_providers
        with pytest.raises(openai.BadRequestError, match="names another organization"):
            await others_providers.update(
                theirs.provider_id, extra_body={"harmony": {"bearer": True}}
            )
        token = issuer.token()
        async with site.user(token) as user:
            shown = (await user.get("/v1/key")).json()["data"]["harmony"]
        assert shown["project_id"] == trust.project_id
        mixed = [
            exchange(trust, token, service_account_id=theirs.account_id),
            exchange(theirs, token, service_account_id=trust.account_id),
        ]
        async with http_client(site.gateway.url) as client:
            for asked in mixed:
                answer = await client.post("/oauth/token", json=asked)
                assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")
        mine, others = (
            [await exchanged(site, one, token) for one in (trust, theirs)]
        )  # fmt: skip
        async with site.user(mine) as user:
            made = await user.post("/v1/responses", json={"model": MODEL, "input": "x"})
        path = f"/v1/responses/{made.json()['id']}"
        assert await status(site, token, path) == 200
        assert await status(site, others, path) == 404
        # A rule cannot name a service account of somebody else.
        with pytest.raises(openai.NotFoundError):
            await providers.federation_rules.create(
                trust.provider_id, attribute_matchers={"sub": "x"},
                project_id=theirs.project_id, service_account_id=theirs.account_id,
            )  # fmt: skip


@pytest.mark.slow
async def test_tokens_open_no_admin_plane(site: AdminSite, trust: Trust) -> None:
    for token in (trust.issuer.token(), await exchanged(site, trust, trust.issuer.token())):
        for url in (site.gateway.url, site.admin_url):
            async with http_client(url, headers={"authorization": f"Bearer {token}"}) as client:
                assert (await client.get("/v1/organization/projects")).status_code == 401
                assert (await client.post("/v1/organization/projects")).status_code == 401
        async with http_client(
            site.admin_url, headers={"authorization": f"Bearer {token}"}
        ) as client:
            assert (await client.get("/admin/v1/tenants")).status_code == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"issuer": "ftp://x.example"}, "issuer"),
        ({"issuer": "https://user:password@x.example"}, "issuer"),
        ({"harmony": {"jwks_url": "https://user@x.example/keys"}}, "harmony.jwks_url"),
        ({"audience": ""}, "audience"),
        ({"harmony": {"algorithms": ["HS256"]}}, "harmony.algorithms[0]"),
        ({"harmony": {"algorithms": ["none"]}}, "harmony.algorithms[0]"),
        ({"harmony": {"clock_skew_seconds": 3600}}, "harmony.clock_skew_seconds"),
        ({"harmony": {"lifetime_max_seconds": 10**6}}, "harmony.lifetime_max_seconds"),
        ({"verification": {"type": "uploaded_jwks", "jwks": {}}}, "verification.jwks"),
        ({"attribute_transformations": [{"attribute": "a", "expression": "1 + 1"}]},
         "attribute_transformations[0].expression"),
        ({"type": "saml"}, "type"),
    ],
)  # fmt: skip
async def test_what_cannot_be_trusted_is_refused(
    site: AdminSite, body: dict[str, Any], param: str
) -> None:
    good = {"name": "n", "type": "oidc", "issuer": "https://x.example", "audience": "a"}
    headers = {"authorization": f"Bearer {site.admin_key}"}
    async with http_client(site.admin_url, headers=headers) as client:
        answer = await client.post(
            "/v1/organization/workload_identity_providers", json={**good, **body}
        )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.slow
async def test_of_tokens_nothing_is_kept_where_nothing_may_be(
    site: AdminSite, other_admin: openai.AsyncOpenAI, issuer: Issuer
) -> None:
    controls = other_admin.admin.organization.data_retention
    async with trusted(other_admin, issuer) as theirs:
        await controls.update(retention_type="zero_data_retention")
        try:
            token = issuer.token()
            for credential in (token, await exchanged(site, theirs, token)):
                async with site.user(credential) as user:
                    body = {"model": MODEL, "input": "x", "store": True}
                    answer = await user.post("/v1/responses", json=body)
                    assert (answer.status_code, answer.json()["store"]) == (200, False)
        finally:
            back: Any = "none"
            await controls.update(retention_type=back)
