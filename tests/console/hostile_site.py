"""A console over a database in which each name that somebody chose is hostile."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import orjson

from gateway import ids
from gateway.audit import Actor, Author
from gateway.console.pages import PAGES
from gateway.console.pages.response import TABS
from gateway.console.pages.usage import GROUPS
from gateway.ledger.jobs import Adding
from gateway.store import audit_log, responses, usage_lines
from gateway.store.postgres.database import turn_to
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId
from tests.fakes.rows import add_rows
from tests.fakes.stored import durable_response, new_response
from tests.fakes.usage_lines import line

if TYPE_CHECKING:
    from uuid import UUID

    from selectolax.lexbor import LexborHTMLParser

    from tests.console.conftest import Site

HOSTILE = (
    '"><u class=evil>\u200b\u202e</textarea></title><script>evil()</script>{{ 7 * 7 }}'
    "<img src=x onerror=evil()>"
)
HOSTILE_ENDING = Statement(
    "UPDATE responses SET timeline = :timeline, conversation_id = :conversation WHERE id = :id"
)
FIELD = re.compile(r"field:([a-z ]+);")
FIELDS = {
    *("tenant", "project", "service account", "key", "scope", "admin key", "hint"),
    *("model of a response", "model of usage", "model of a limit"),
    *("operator", "address", "agent", "audit target", "audit detail", "drained by"),
    *("backend", "version", "problem", "backend of an attempt", "rule of a repair"),
    *("tenant in flight", "model in flight", "code of a failure", "replica"),
}
"""What somebody else than the gateway names, or might."""


def written(field: str) -> str:
    assert field in FIELDS
    return f"{HOSTILE} field:{field};"


@dataclass(frozen=True)
class HostileSite:
    """A console over a database in which each name that somebody chose is hostile."""

    site: Site
    response_id: str
    conversation_id: str
    key_id: str

    async def paths(self) -> dict[str, list[str]]:
        """Addresses of every page, with what can be chosen there, by the path of the page."""
        place = {"response_id": self.response_id, "conversation_id": self.conversation_id}
        paths = {
            page.path: [page.path.format(**place)]
            if any(f"{{{name}}}" in page.path for name in place)
            else [await self.site.path_of(page)]
            for page in PAGES
        }
        project = paths["/tenants/{name}/projects/{project_id}"][0].rpartition("/")[2]
        of_project = f"?tenant=acme&project={project}"
        paths["/connect"] += [f"/connect{of_project}&key={self.key_id}"]
        paths["/playground"] += ["/playground?tenant=acme", f"/playground{of_project}"]
        paths["/audit"] += ["/audit?tenant=acme"]
        paths["/responses"] += ["/responses?tenant=acme&status=completed"]
        paths["/responses/{response_id}"] += [
            f"/responses/{self.response_id}?tab={tab}" for tab in TABS
        ]
        for page in ("/usage", "/usage.csv"):
            paths[page] += [f"{page}?tenant=acme&span=day&group={group}" for group in GROUPS]
        return paths


async def filled(site: Site) -> HostileSite:
    acme, key = TenantId(ids.new_uuid()), ids.new_uuid()
    await add_tenant(site, acme, key)
    await add_fleet(site)
    response_id, conversation_id = await add_responses(site, acme)
    return HostileSite(site, response_id, conversation_id, ids.api_key_id(key))


async def add_tenant(site: Site, acme: TenantId, key_id: UUID) -> None:
    """A tenant `acme`, whose project, keys, limits, usage and audit log have hostile names."""
    database, at = site.process.foundation.database, datetime.now(UTC)
    async with database.owner_transaction() as connection:
        tenant = {"id": acme, "name": "acme", "created_at": at}
        await add_rows(connection, "tenants", tenant)
    project = {"tenant_id": acme, "id": acme, "name": written("project"), "created_at": at}
    account = {"tenant_id": acme, "project_id": acme, "id": acme, "role": "member"}
    account |= {"name": written("service account"), "created_at": at}
    key = {"tenant_id": acme, "created_at": at, "hint": written("hint"), "owner_id": acme}
    key |= {"owner_type": "service_account", "scopes": [written("scope")]}
    limit = {"tenant_id": acme, "scope": "tenant", "scope_id": acme, "what": "requests"}
    limit |= {"window_s": 60, "value": 1, "mode": "enforce", "updated_at": at}
    author = Author(Actor("operator", "<u>id", None, written("operator")), written("address"))
    event = author.event(
        "project.created", written("audit target"), data={"name": written("audit detail")}
    )
    async with database.transaction(acme) as connection:
        await add_rows(connection, "projects", project)
        await add_rows(connection, "service_accounts", account)
        for kind, name, id_ in (
            ("project", "key", key_id), ("admin", "admin key", ids.new_uuid()),
        ):  # fmt: skip
            made = {"id": id_, "hash": id_.bytes, "kind": kind, "name": written(name)}
            await add_rows(connection, "api_keys", key | made)
        await add_rows(connection, "limits", limit | {"model": written("model of a limit")})
        await audit_log.record(connection, acme, event)
    async with database.transaction(TenantId(EVERYONE)) as connection:
        await audit_log.record(connection, None, event)
    used = line(at, model=written("model of usage"), key_id=key_id)
    await usage_lines.record_all(database, [(acme, used)])
    await Adding(database, metrics=site.process.foundation.metrics).round()


async def add_fleet(site: Site) -> None:
    """A replica that sees backends with hostile names, and what is in flight there."""
    body = site.process.replica.snapshots.body()
    (backend,) = body["backends"]
    names = {name: written(name) for name in ("version", "problem")}
    shown = {"tenant": written("tenant in flight"), "model": written("model in flight")}
    running = {"id": ids.response_id(ids.new_uuid()), "phase": "thinking", "tokens": 1}
    running |= {"age_s": 1.0, "hops": 1, "background": True, "stored": True, "repairs": 1}
    running |= {"backend": written("backend")}
    failed = {"at": 1, "response_id": running["id"], "stored": True, "backend": running["backend"]}
    body |= {
        "backends": [backend | names | {"name": written("backend"), "healthy": False}],
        "responses": [running | shown],
        "failures": [failed | shown | {"code": written("code of a failure")}],
        "repairs": [failed | shown | {"code": written("rule of a repair")}],
        "tenants": [{"tenant": shown["tenant"], "waiting": 1, "running": 1}],
    }
    # Of tomorrow, so that it stays.
    row = {"tenant_id": EVERYONE, "replica": written("replica"), "body": orjson.dumps(body)}
    row["at"] = datetime.now(UTC) + timedelta(days=1)
    drained = {"tenant_id": EVERYONE, "name": "b0", "drained_by": written("drained by")}
    drained["drained_at"] = datetime.now(UTC)
    async with site.process.foundation.database.owner_transaction() as connection:
        await turn_to(connection, TenantId(EVERYONE))
        await add_rows(connection, "replica_snapshots", row)
        await add_rows(connection, "backend_drains", drained)


async def add_responses(site: Site, acme: TenantId) -> tuple[str, str]:
    """Of a tenant with a hostile name: one that has ended, in a conversation, and one that waits.

    Returns the ids of the first and of its conversation.
    """
    database, tenant = site.process.foundation.database, TenantId(ids.new_uuid())
    async with database.owner_transaction() as connection:
        # Behind `acme`, which is therefore chosen where nothing is.
        named = {"id": tenant, "name": "b" + written("tenant"), "created_at": datetime.now(UTC)}
        await add_rows(connection, "tenants", named)
    at, model = datetime.now(UTC), written("model of a response")
    ended = replace(new_response(status="completed"), created_at=at, model=model)
    await responses.insert(database, tenant, ended)
    await responses.insert(
        database, tenant, replace(durable_response(), created_at=at, model=model)
    )
    await responses.insert(database, acme, replace(new_response(), created_at=at, model=model))
    begin_ms = int(at.timestamp() * 1000)
    timeline = [
        ("replica", begin_ms, 0, written("replica"), 0),
        ("backend", begin_ms + 1, 0, written("backend of an attempt"), 0),
        ("repair", begin_ms + 2, 1, written("rule of a repair"), 1),
        ("finished", begin_ms + 3, 1, "completed", 0),
    ]
    conversation = ids.new_uuid()
    changed = {"timeline": orjson.dumps(timeline), "conversation": conversation}
    async with database.transaction(tenant) as connection:
        await connection.execute(HOSTILE_ENDING, {"id": ended.uuid, **changed})
    return ids.response_id(ended.uuid), ids.conversation_id(conversation)


def check(page: LexborHTMLParser, path: str) -> None:
    assert page.css("u, img, script:not([src])") == [], path
    assert page.css("[onerror]") == [], path
    assert not {"\u202e", "\u200b"} & set(page.html or ""), path
