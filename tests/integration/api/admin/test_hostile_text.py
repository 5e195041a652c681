"""Ids, queries and bodies that nobody should send to the admin planes: refused, never by a 5xx."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from gateway.admin.operator_keys import OperatorCreate, Operators
from gateway.admin.resources import admin_routes, operator_routes
from gateway.audit import COMMAND_LINE
from gateway.wiring.admin import admin_services, operator_services
from tests.fakes.admin_bodies import body_of
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    import openai

    from gateway.admin.routes import AdminRoute
    from tests.integration.api.admin.conftest import AdminSite

PARAMETER: Final = re.compile(r"\{(\w+)(?::path)?\}")
HOSTILE: Final = (
    *("%00", "a%00b", "%ff%fe", "%ed%a0%80", "-1", "0", "9" * 30, "1e400", "NaN", ""),
    *("253402300800", "9223372036854775807", "..%2f..", "%27;--", "x" * 3000, "%E2%80%A8"),
)
VALUES: Final = ("a\0b", 2**53 - 1, None)
SOME_VALUES: Final[tuple[Any, ...]] = (
    *("", " ", "a\nb", "\u202e", "\U0001f600" * 300, "x" * 100_000, "'; --", "*", "-1", {}),
    *(True, -1, 0, 1.5, 2**31, 10**20, [], ["a\0b"], {"a\0b": "a\0b"}),
)
WRONG_BODIES: Final = (b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 10_000)
NAMES: Final = (
    *("after", "before", "limit", "order", "start_time", "end_time", "bucket_width", "page"),
    *("group_by[]", "project_ids[]", "models[]", "api_key_ids[]", "user_ids[]", "event_types[]"),
    *("actor_ids[]", "actor_emails[]", "resource_ids[]", "effective_at[gte]", "effective_at[%00]"),
    *("format", "from_tx", "include_archived", "owner_project_access", "tenant", "status", "%00"),
)


def filled(url: str, given: dict[str, str]) -> str:
    """With ids, and something unknown where none is given."""

    def value(found: re.Match[str]) -> str:
        return given.get(found[1], "unknown")

    return PARAMETER.sub(value, url)


def urls(route: AdminRoute, project: str, turn: Iterator[int]) -> Iterator[str]:
    """With hostile ids in each place, behind a project that there is; then with each query.

    Of the ids and of the values some, by turns: no two routes in a row have the same.
    """
    known = {"project_id": project}
    some = HOSTILE[next(turn) % 6 :: 6]
    for name, value in itertools.product(PARAMETER.findall(route.url), some):
        yield filled(route.url, known | {name: value or "%20"})
    if route.method == "GET":
        for at, name in enumerate(NAMES):
            for value in HOSTILE[(at + next(turn)) % 16 :: 16]:
                yield f"{filled(route.url, known)}?{quote(name, safe='%[]')}={value}"


def with_values(body: Any, turn: Iterator[int]) -> Iterator[Any]:
    """The body, with hostile values in each place, one at a time: these, and some in turn."""
    if isinstance(body, dict):
        for name in body:
            for part in with_values(body[name], turn):
                yield {**body, name: part}
    elif isinstance(body, list):
        for at, one in enumerate(body):
            for part in with_values(one, turn):
                yield [*body[:at], part, *body[at + 1 :]]
    yield from (*VALUES, *SOME_VALUES[next(turn) % 10 :: 10])


async def table_of(site: AdminSite, plane: str) -> tuple[str, list[AdminRoute]]:
    """A key that may do everything on a plane, and its routes."""
    process = site.gateway.process
    database = process.foundation.database
    if plane == "operator":
        _, key = await Operators(database, process.access.peppers).create(
            COMMAND_LINE, OperatorCreate(name="hostile")
        )
        return key, operator_routes(operator_services(process))
    services = admin_services(process.foundation.settings, database, process.access)
    return site.admin_key, admin_routes(services)


@pytest.mark.slow
@pytest.mark.parametrize("plane", ["tenant", "operator"])
async def test_no_body_is_a_fault_of_the_server(
    site: AdminSite, admin: openai.AsyncOpenAI, plane: str
) -> None:
    organization = admin.admin.organization
    project = (await organization.projects.create(name="Hostile")).id
    account = (await organization.projects.service_accounts.create(project, name="ci")).id
    provider = await organization.workload_identity_providers.create(
        name="sso", type="oidc", issuer="https://hostile.example", audience="gateway"
    )
    known = {
        "project_id": project,
        "service_account_id": account,
        "workload_identity_provider_id": provider.id,
        "id": "rl-gpt-oss-20b",
        "name": "hostile",
    }
    key, table = await table_of(site, plane)
    asked, turn = 0, itertools.count()
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(site.admin_url, headers=headers, timeout=60) as client:
        if plane == "operator":
            await client.post("/admin/v1/tenants", json={"name": "hostile"})
        for route in table:
            body = body_of(route.body, PROJECT=project, ACCOUNT=account, acme="hostile")
            if body is None:
                continue
            url = filled(route.url, known)
            for content in (*WRONG_BODIES, *map(encoded, with_values(body, turn))):
                answer = await client.request(route.method, url, content=content)
                assert answer.status_code < 500, (route, content[:200], answer.text)
                asked += 1
    assert asked > 200


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.slow
@pytest.mark.parametrize("plane", ["tenant", "operator"])
async def test_no_id_and_no_query_is_a_fault_of_the_server(
    site: AdminSite, admin: openai.AsyncOpenAI, plane: str
) -> None:
    project = (await admin.admin.organization.projects.create(name="Hostile")).id
    key, table = await table_of(site, plane)
    asked, turn = 0, itertools.count()
    async with http_client(
        site.admin_url, headers={"authorization": f"Bearer {key}"}, timeout=60
    ) as client:
        for route in table:
            for url in urls(route, project, turn):
                answer = await client.request(route.method, url)
                assert answer.status_code < 500, (route.method, url, answer.text)
                asked += 1
    assert asked > 200
