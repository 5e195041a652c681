"""Federation rules: which tokens of an identity provider stand for which service account.

Bodies and objects are those of openai-python 3.52.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Discriminator, Field, StringConstraints
from sqlalchemy import Uuid, bindparam, or_

from gateway import ids
from gateway.admin.identity_providers import (
    ATTRIBUTES_MAX,
    ONE,
    PROVIDERS_OF_TENANTS,
    AttributeName,
    ErasableModel,
    too_many,
    written,
)
from gateway.admin.projects import required_project
from gateway.admin.routes import changed, deleted, listed, read
from gateway.admin.service_accounts import required_account, unknown_account
from gateway.admin.transactions import ResourceRows, insert_row, mark_by_id, update_by_id
from gateway.errors import ResourceNotFound, shown
from gateway.protocol.admin_bodies import DisplayName, Json, ShortText, scopes_of, seconds_of
from gateway.protocol.base import Many, WireModel
from gateway.store.callers import rule_of_row
from gateway.store.tables import TABLES
from gateway.tenancy.permissions import SCOPES

if TYPE_CHECKING:
    from gateway.admin.routes import AdminRoute
    from gateway.admin.transactions import AdminCaller, Transactions
    from gateway.protocol.pages import Page, PageParams
    from gateway.store.postgres.database import Connection
    from gateway.tenancy import TenantId
    from gateway.tenancy.issuers import FederationRule

RULES: Final = TABLES["federation_rules"]

ALL = f"{ONE}/federation_rules"
ONE_RULE = f"{ALL}/{{workload_identity_federation_rule_id}}"
KIND = "organization.workload_identity_federation_rule"
EVENT: Final = "workload_identity_provider_mapping"
RULES_MAX: Final = 50
"""Rules per identity provider."""

MatcherValue = (
    Annotated[str, StringConstraints(max_length=1024)]
    | bool
    | Annotated[int, Field(ge=-(2**53), le=2**53)]
    | Annotated[float, Field(allow_inf_nan=False)]
)
Matchers = Annotated[
    dict[AttributeName, MatcherValue], Field(min_length=1, max_length=ATTRIBUTES_MAX)
]


class DefaultPermissions(WireModel):
    """Permissions of a token equal to those of a service account of the project."""

    type: Literal["service_account_default"]


class RestrictedPermissions(WireModel):
    """Permissions of a token limited to these scopes, such as `responses.read`."""

    type: Literal["restricted"]
    scopes: Annotated[Many[str], Field(min_length=1, max_length=len(SCOPES))]


Permissions = Annotated[DefaultPermissions | RestrictedPermissions, Discriminator("type")]


class _RuleFields(ErasableModel):
    _erasable: ClassVar[tuple[str, ...]] = ("name", "description")

    name: DisplayName | None = None
    description: ShortText | None = None
    enabled: bool | None = None
    permissions: Permissions | None = None
    attribute_matchers: Matchers | None = None

    def columns(self) -> Json:
        columns = self.model_dump(include={"name", "description", "enabled"}, exclude_unset=True)
        if self.attribute_matchers is not None:
            columns["matchers"] = self.attribute_matchers
        if self.permissions is not None:
            permissions = self.permissions
            scopes = permissions.scopes if isinstance(permissions, RestrictedPermissions) else ()
            columns["scopes"] = scopes_of(scopes)
        return columns


class RuleCreate(_RuleFields):
    """`POST …/federation_rules`: which tokens of a provider stand for a service account."""

    attribute_matchers: Matchers
    project_id: ShortText
    service_account_id: ShortText


class RuleUpdate(_RuleFields):
    """`POST …/federation_rules/{id}`: omitted fields stay, null erases name and description."""


def routes(rules: FederationRules) -> list[AdminRoute]:
    may_read: Final = "workload_identity.read"
    may_write: Final = "workload_identity.write"
    return [
        listed(
            ALL, may_read, rules.list, rule_body, filters=("service_account_id",), is_ordered=True
        ),
        changed(ALL, may_write, rules.create, rule_body, RuleCreate),
        read(ONE_RULE, may_read, rules.get, rule_body),
        changed(ONE_RULE, may_write, rules.change, rule_body, RuleUpdate),
        deleted(ONE_RULE, may_write, rules.delete, KIND),
    ]


def rule_body(rule: FederationRule) -> Json:
    # Usage has the rule's id as `api_key_id`.
    return {
        "id": ids.federation_rule_id(rule.id),
        "object": KIND,
        "workload_identity_provider_id": ids.identity_provider_id(rule.provider_id),
        "project_id": ids.project_id(rule.project_id),
        "service_account_id": ids.service_account_id(rule.service_account_id),
        "name": rule.name,
        "description": rule.description,
        "attribute_matchers": dict(rule.matchers),
        "permissions": {"type": "restricted", "scopes": sorted(rule.scopes)}
        if rule.scopes
        else {"type": "service_account_default"},
        "enabled": rule.enabled,
        "created_at": seconds_of(rule.created_at),
        "updated_at": seconds_of(rule.updated_at),
        "harmony": {"api_key_id": ids.api_key_id(rule.id)},
    }


def _audited_rule(rule: FederationRule) -> Json:
    fields = ("service_account_id", "attribute_matchers", "enabled")
    body = rule_body(rule)
    return {name: body[name] for name in fields} | {"scopes": sorted(rule.scopes)}


_RULE_IS_THERE: Final = (RULES.c.provider_id == bindparam("provider"), RULES.c.deleted_at.is_(None))


def _unknown_rule(rule_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"No federation rule with id '{shown(rule_id)}' was found at this identity provider.",
        code="federation_rule_not_found",
        param="workload_identity_federation_rule_id",
    )


_ACCOUNT: Final = bindparam("account", type_=Uuid)
_RULES: Final = ResourceRows(
    RULES,
    rule_of_row,
    ids.parse_federation_rule_id,
    _unknown_rule,
    *_RULE_IS_THERE,
    or_(_ACCOUNT.is_(None), RULES.c.service_account_id == _ACCOUNT),
)


async def _required_rule(
    connection: Connection, tenant_id: TenantId, provider_id: str, rule_id: str
) -> FederationRule:
    provider = await PROVIDERS_OF_TENANTS.get(connection, provider_id, tenant=tenant_id)
    return await _RULES.get(
        connection, rule_id, tenant=tenant_id, provider=provider.id, account=None
    )


class FederationRules:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def create(
        self, caller: AdminCaller, provider_id: str, body: RuleCreate
    ) -> FederationRule:
        tenant_id = caller.tenant_id
        columns = body.columns()
        async with self._transactions.changing(caller.tenant_id) as connection:
            provider = await PROVIDERS_OF_TENANTS.get(connection, provider_id, tenant=tenant_id)
            count = await _RULES.count(
                connection, tenant=tenant_id, provider=provider.id, account=None
            )
            if count >= RULES_MAX:
                raise too_many(RULES_MAX, "federation rules of this identity provider")
            project = await required_project(connection, tenant_id, body.project_id, is_active=True)
            account = await required_account(connection, project, body.service_account_id)
            new = {
                "tenant_id": tenant_id,
                "id": ids.new_uuid(),
                "provider_id": provider.id,
                "project_id": project.id,
                "service_account_id": account.id,
                "enabled": True,
                "scopes": frozenset(),
                **columns,
            }
            made = rule_of_row(await written(connection, insert_row(RULES, *new), new))
            await caller.note(
                connection,
                f"{EVENT}.created",
                ids.federation_rule_id(made.id),
                project.id,
                identity_provider_id=provider_id,
                data=_audited_rule(made),
            )
            return made

    async def get(self, tenant_id: TenantId, provider_id: str, rule_id: str) -> FederationRule:
        async with self._transactions.reading(tenant_id) as connection:
            return await _required_rule(connection, tenant_id, provider_id, rule_id)

    async def list(
        self,
        tenant_id: TenantId,
        provider_id: str,
        page: PageParams,
        *,
        service_account_id: str | None = None,
    ) -> Page[FederationRule]:
        account = None
        if service_account_id is not None:
            account = ids.parse_service_account_id(service_account_id)
            if account is None:
                raise unknown_account(service_account_id)
        async with self._transactions.reading(tenant_id) as connection:
            provider = await PROVIDERS_OF_TENANTS.get(connection, provider_id, tenant=tenant_id)
            return await _RULES.page(
                connection, page, tenant=tenant_id, provider=provider.id, account=account
            )

    async def change(
        self, caller: AdminCaller, provider_id: str, rule_id: str, body: RuleUpdate
    ) -> FederationRule:
        tenant_id = caller.tenant_id
        columns = body.columns()
        async with self._transactions.changing(caller.tenant_id) as connection:
            rule = await _required_rule(connection, tenant_id, provider_id, rule_id)
            parameters = {"tenant": tenant_id, "id": rule.id, **columns}
            rule = rule_of_row(await written(connection, update_by_id(RULES, *columns), parameters))
            await caller.note(
                connection,
                f"{EVENT}.updated",
                rule_id,
                rule.project_id,
                identity_provider_id=provider_id,
                changes_requested=_audited_rule(rule),
            )
            return rule

    async def delete(self, caller: AdminCaller, provider_id: str, rule_id: str) -> None:
        # Tokens that were exchanged by the rule stop working.
        async with self._transactions.changing(caller.tenant_id) as connection:
            rule = await _required_rule(connection, caller.tenant_id, provider_id, rule_id)
            await connection.execute(
                mark_by_id(RULES, "deleted_at"), {"tenant": caller.tenant_id, "id": rule.id}
            )
            await caller.note(
                connection,
                f"{EVENT}.deleted",
                rule_id,
                rule.project_id,
                identity_provider_id=provider_id,
                service_account_id=ids.service_account_id(rule.service_account_id),
            )
