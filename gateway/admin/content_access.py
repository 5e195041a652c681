"""`/organization/content_access`: a tenant's consent that operators read what its responses say.

Whether they need it is the tenant's policy `operator_content_access`. Each reveal has a reason,
which the tenant's audit log has (`harmony.content.revealed`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from pydantic import Field
from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from gateway import ids
from gateway.admin.core import CoreStatement
from gateway.admin.projects import TENANTS
from gateway.admin.routes import audited, changed, deleted, read
from gateway.errors import PermissionDenied
from gateway.protocol.admin_bodies import seconds_of
from gateway.protocol.base import WireModel
from gateway.store.tables.tenants import content_consents as CONSENTS  # noqa: N812 - a constant
from gateway.tenancy.policy import DEFAULT_POLICY

if TYPE_CHECKING:
    from gateway.admin.routes import AdminRoute
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.admin_bodies import Json
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import TenantId

PATH: Final = "/organization/content_access"
CONSENT_MAX: Final = timedelta(days=90)
"""Nobody remembers an older one."""


def routes(access: ContentAccess) -> list[AdminRoute]:
    may_read: Final = "data_retention.read"
    may_write: Final = "data_retention.write"
    return [
        read(PATH, may_read, access.get, access_body),
        changed(PATH, may_write, access.consent, access_body, ContentConsent),
        deleted(PATH, may_write, access.withdraw, "organization.content_access"),
    ]


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
            f"has ended. Its owner gives it by: POST /v1{PATH}.",
        }
        raise PermissionDenied(why[self.policy], code="content_access_denied")


def access_body(access: OperatorAccess) -> Json:
    until = access.consent_until
    return {
        "object": "organization.content_access",
        "operator_content_access": access.policy,
        "consent_expires_at": None if until is None else seconds_of(until),
    }


_FIND: Final = CoreStatement(
    select(TENANTS.c.operator_content_access, CONSENTS.c.until)
    .select_from(
        TENANTS.outerjoin(
            CONSENTS, (CONSENTS.c.tenant_id == TENANTS.c.id) & (CONSENTS.c.until > func.now())
        )
    )
    .where(TENANTS.c.id == bindparam("tenant"))
)
_NEW: Final = insert(CONSENTS).values(
    tenant_id=bindparam("tenant"), until=bindparam("until"), granted_at=func.now()
)
_CONSENT: Final = CoreStatement(
    _NEW.on_conflict_do_update(
        index_elements=[CONSENTS.c.tenant_id],
        set_={"until": _NEW.excluded.until, "granted_at": _NEW.excluded.granted_at},
    )
)
_WITHDRAW: Final = CoreStatement(
    delete(CONSENTS).where(CONSENTS.c.tenant_id == bindparam("tenant"))
)


async def find_access(connection: Connection, tenant_id: TenantId) -> OperatorAccess:
    row = (await connection.execute(_FIND, {"tenant": tenant_id})).one_or_none()
    if row is None:
        return OperatorAccess(DEFAULT_POLICY.operator_content_access, None)
    policy = row.operator_content_access or DEFAULT_POLICY.operator_content_access
    return OperatorAccess(policy, row.until)


class ContentAccess:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def get(self, tenant_id: TenantId) -> OperatorAccess:
        async with self._transactions.reading(tenant_id) as connection:
            return await find_access(connection, tenant_id)

    async def consent(self, caller: AdminCaller, body: ContentConsent) -> OperatorAccess:
        tenant_id = caller.tenant_id
        until = datetime.now(UTC) + timedelta(seconds=body.expires_in_s)
        async with self._transactions.changing(tenant_id) as connection:
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
        async with self._transactions.changing(tenant_id) as connection:
            await connection.execute(_WITHDRAW, {"tenant": tenant_id})
            await caller.note(
                connection,
                "organization.updated",
                ids.tenant_id(tenant_id),
                changes_requested={"content_access": None},
            )
