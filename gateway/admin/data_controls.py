"""`…/data_retention` and `/organization/content_access`: how long content is kept, and a tenant's
consent that operators read what its responses say.

A change of retention counts for new requests once their key is looked up again
(`auth.key_cache_ttl_s`). Stored content stays until it expires or is erased. Whether operators need
the consent is the tenant's policy `operator_content_access`. Each reveal has a reason, which the
tenant's audit log has (`harmony.content.revealed`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from pydantic import Field
from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from gateway import ids
from gateway.admin.projects import ONE as PROJECT
from gateway.admin.projects import PROJECTS, TENANTS, required_project
from gateway.admin.routes import AuditedAs, audited, changed, deleted, read
from gateway.admin.transactions import CoreStatement, of_tenant, update_by_id
from gateway.errors import PermissionDenied
from gateway.protocol.admin_bodies import seconds_of
from gateway.protocol.base import WireModel
from gateway.store.tables.tenants import content_consents as CONSENTS  # noqa: N812 - a constant
from gateway.tenancy.policy import (
    DEFAULT_POLICY,
    DEFAULT_RETENTION,
    ORGANIZATION_DEFAULT,
    check_retention_type,
)

if TYPE_CHECKING:
    from gateway.admin.routes import AdminRoute
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.admin_bodies import Json
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import TenantId

OF_ORGANIZATION: Final = "/organization/data_retention"
OF_PROJECT: Final = f"{PROJECT}/data_retention"


def routes(controls: DataControls) -> list[AdminRoute]:
    may_read: Final = "data_retention.read"
    may_write: Final = "data_retention.write"
    body = DataRetentionUpdate
    set_of_organization, set_of_project = controls.set_of_organization, controls.set_of_project
    return [
        read(OF_ORGANIZATION, may_read, controls.of_organization, organization_body),
        changed(OF_ORGANIZATION, may_write, set_of_organization, organization_body, body),
        read(OF_PROJECT, may_read, controls.of_project, project_body),
        changed(OF_PROJECT, may_write, set_of_project, project_body, body),
        read(CONTENT_ACCESS, may_read, controls.content_access, access_body),
        changed(CONTENT_ACCESS, may_write, controls.consent, access_body, ContentConsent),
        deleted(CONTENT_ACCESS, may_write, controls.withdraw, "organization.content_access"),
    ]


class DataRetentionUpdate(WireModel):
    """Data retention: `none`, `zero_data_retention`; of a project `organization_default`, too."""

    retention_type: Annotated[str, Field(max_length=64), AuditedAs("data_retention")]


def organization_body(type_: str | None) -> Json:
    return {"object": "organization.data_retention", "type": type_ or DEFAULT_RETENTION}


def project_body(type_: str | None) -> Json:
    return {"object": "project.data_retention", "type": type_ or ORGANIZATION_DEFAULT}


_OF_TENANT: Final = CoreStatement(
    select(TENANTS.c.retention_type).where(TENANTS.c.id == bindparam("tenant"))
)
_SET_OF_TENANT: Final = CoreStatement(
    update(TENANTS)
    .where(TENANTS.c.id == bindparam("tenant"))
    .values(retention_type=bindparam("type"))
)
_OF_PROJECT: Final = CoreStatement(
    select(PROJECTS.c.retention_type).where(*of_tenant(PROJECTS, "id"))
)
CONTENT_ACCESS: Final = "/organization/content_access"
CONSENT_MAX: Final = timedelta(days=90)
"""Nobody remembers an older one."""


class ContentConsent(WireModel):
    """`POST …/content_access`: until when operators may read content, in seconds from now."""

    expires_in_s: Annotated[int, Field(ge=60, le=int(CONSENT_MAX.total_seconds()))]


class OperatorAccess(NamedTuple):
    policy: str
    consent_until: datetime | None

    @property
    def is_open(self) -> bool:
        until = self.consent_until
        has_consent = until is not None and until > datetime.now(UTC)
        return self.policy == "always" or (self.policy == "consent" and has_consent)

    def check(self) -> None:
        if self.is_open:
            return
        why = {
            "never": "The policy of this tenant lets no operator read content. It is changed by: "
            "harmony-gateway tenants set NAME --operator-content-access consent.",
            "consent": "This tenant has not consented that operators read content, or its consent "
            f"has ended. Its owner gives it by: POST /v1{CONTENT_ACCESS}.",
        }
        raise PermissionDenied(why[self.policy], code="content_access_denied")


def access_body(access: OperatorAccess) -> Json:
    until = access.consent_until
    return {
        "object": "organization.content_access",
        "operator_content_access": access.policy,
        "consent_expires_at": None if until is None else seconds_of(until),
    }


_FIND_ACCESS: Final = CoreStatement(
    select(TENANTS.c.operator_content_access, CONSENTS.c.until)
    .select_from(
        TENANTS.outerjoin(
            CONSENTS, (CONSENTS.c.tenant_id == TENANTS.c.id) & (CONSENTS.c.until > func.now())
        )
    )
    .where(TENANTS.c.id == bindparam("tenant"))
)
_NEW_CONSENT: Final = insert(CONSENTS).values(
    tenant_id=bindparam("tenant"), until=bindparam("until"), granted_at=func.now()
)
_CONSENT: Final = CoreStatement(
    _NEW_CONSENT.on_conflict_do_update(
        index_elements=[CONSENTS.c.tenant_id],
        set_={"until": _NEW_CONSENT.excluded.until, "granted_at": _NEW_CONSENT.excluded.granted_at},
    )
)
_WITHDRAW: Final = CoreStatement(
    delete(CONSENTS).where(CONSENTS.c.tenant_id == bindparam("tenant"))
)


async def find_access(connection: Connection, tenant_id: TenantId) -> OperatorAccess:
    row = (await connection.execute(_FIND_ACCESS, {"tenant": tenant_id})).one_or_none()
    if row is None:
        return OperatorAccess(DEFAULT_POLICY.operator_content_access, None)
    policy = row.operator_content_access or DEFAULT_POLICY.operator_content_access
    return OperatorAccess(policy, row.until)


class DataControls:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def of_organization(self, tenant_id: TenantId) -> str | None:
        async with self._transactions.reading(tenant_id) as connection:
            retention_type: str | None = await connection.scalar(_OF_TENANT, {"tenant": tenant_id})
            return retention_type

    async def set_of_organization(self, caller: AdminCaller, body: DataRetentionUpdate) -> str:
        check_retention_type(body.retention_type, of_project=False)
        tenant_id = caller.tenant_id
        remedy = "Ask the operator of this server to run: harmony-gateway data retention."
        async with self._transactions.owning(remedy) as connection:
            wanted = {"tenant": tenant_id, "type": body.retention_type}
            await connection.execute(_SET_OF_TENANT, wanted)
            await caller.note(
                connection,
                "organization.updated",
                ids.tenant_id(tenant_id),
                changes_requested=audited(body),
            )
        return body.retention_type

    async def of_project(self, tenant_id: TenantId, project_id: str) -> str | None:
        async with self._transactions.reading(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id)
            row = {"tenant": tenant_id, "id": project.id}
            retention_type: str | None = await connection.scalar(_OF_PROJECT, row)
            return retention_type

    async def set_of_project(
        self, caller: AdminCaller, project_id: str, body: DataRetentionUpdate
    ) -> str:
        check_retention_type(body.retention_type, of_project=True)
        tenant_id = caller.tenant_id
        async with self._transactions.changing(tenant_id) as connection:
            project = await required_project(connection, tenant_id, project_id, is_active=True)
            row = {"tenant": tenant_id, "id": project.id, "retention_type": body.retention_type}
            await connection.execute(update_by_id(PROJECTS, "retention_type"), row)
            await caller.note(
                connection,
                "project.updated",
                project_id,
                project.id,
                changes_requested=audited(body),
            )
        return body.retention_type

    async def content_access(self, tenant_id: TenantId) -> OperatorAccess:
        async with self._transactions.reading(tenant_id) as connection:
            return await find_access(connection, tenant_id)

    async def consent(self, caller: AdminCaller, body: ContentConsent) -> OperatorAccess:
        tenant_id = caller.tenant_id
        until = datetime.now(UTC) + timedelta(seconds=body.expires_in_s)
        async with self._transactions.in_turn(tenant_id) as connection:
            await connection.execute(_CONSENT, {"tenant": tenant_id, "until": until})
            await caller.note(
                connection,
                "organization.updated",
                ids.tenant_id(tenant_id),
                changes_requested={"content_access": audited(body)},
            )
            return await find_access(connection, tenant_id)

    async def withdraw(self, caller: AdminCaller) -> None:
        """End the consent: what was revealed under it is hidden at once."""
        tenant_id = caller.tenant_id
        async with self._transactions.in_turn(tenant_id) as connection:
            await connection.execute(_WITHDRAW, {"tenant": tenant_id})
            await caller.note(
                connection,
                "organization.updated",
                ids.tenant_id(tenant_id),
                changes_requested={"content_access": None},
            )
