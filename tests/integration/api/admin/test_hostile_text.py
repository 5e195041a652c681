"""Ids and queries that nobody should send to the admin planes: refused, and never by a 5xx."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest

from gateway.api.admin.table import admin_routes, operator_routes
from gateway.services.admin.operators import Operators
from gateway.wiring.admin import admin_services, operator_services
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    import openai

    from gateway.api.admin.routes import AdminRoute
    from tests.integration.api.admin.conftest import AdminSite

PARAMETER: Final = re.compile(r"\{(\w+)(?::path)?\}")
HOSTILE: Final = (
    *("%00", "a%00b", "%ff%fe", "%ed%a0%80", "-1", "0", "9" * 30, "1e400", "NaN", ""),
    *("253402300800", "9223372036854775807", "..%2f..", "%27;--", "x" * 3000, "%E2%80%A8"),
)
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


def urls(route: AdminRoute, project: str) -> Iterator[str]:
    """With each hostile id in each place, behind a project that there is; then each query."""
    known = {"project_id": project}
    for name, value in itertools.product(PARAMETER.findall(route.url), HOSTILE):
        yield filled(route.url, known | {name: value or "%20"})
    if route.method == "GET":
        for at, name in enumerate(NAMES):
            for value in HOSTILE[at % 4 :: 4]:
                yield f"{filled(route.url, known)}?{quote(name, safe='%[]')}={value}"


@pytest.mark.parametrize("plane", ["tenant", "operator"])
async def test_no_id_and_no_query_is_a_fault_of_the_server(
    site: AdminSite, admin: openai.AsyncOpenAI, plane: str
) -> None:
    process = site.gateway.process
    database = process.default.foundation.database
    project = (await admin.admin.organization.projects.create(name="Hostile")).id
    _, operator = await Operators(database, process.access.peppers).create("hostile", None)
    key = operator if plane == "operator" else site.admin_key
    if plane == "operator":
        table = operator_routes(operator_services(process))
    else:
        table = admin_routes(admin_services(process.shared.settings, database, process.access))
    asked = 0
    async with http_client(
        site.admin_url, headers={"authorization": f"Bearer {key}"}, timeout=60
    ) as client:
        for route in table:
            for url in urls(route, project):
                answer = await client.request(route.method, url)
                assert answer.status_code < 500, (route.method, url, answer.text)
                asked += 1
    assert asked > 200
