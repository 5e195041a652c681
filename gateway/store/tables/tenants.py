from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import CheckConstraint

from gateway.store.schema import AUDIT_LOG_KEPT_DAYS, EVERYONE
from gateway.store.tables.columns import (
    DERIVED,
    EVERYTHING,
    OF_NO_TENANT,
    SETTINGS,
    Access,
    Kept,
    Lifetime,
    bigint,
    boolean,
    bytea,
    cidrs,
    index,
    integer,
    of_tenant,
    one_of,
    refers,
    smallint,
    table,
    tenant_id,
    text,
    texts,
    time,
    unique,
    unique_index,
    uuid,
)
from gateway.tenancy.policy import POLICY_VALUES

if TYPE_CHECKING:
    from sqlalchemy import Column

_KEY_SEEN: Final = (
    "tenant_id, id, name, hint, created_at, disabled_at, dialect, kind, project_id, owner_type,"
    " owner_id, scopes, expires_at, last_used_at, allowed_cidrs, allowed_models, replaced_by,"
    " created_by, pepper_id"
)
_KEY_CHANGED: Final = (
    "name, disabled_at, scopes, expires_at, last_used_at, allowed_cidrs, allowed_models,"
    " replaced_by, hash, pepper_id"
)


def _edited() -> list[Column[Any]]:
    return [
        boolean("enabled"),
        time("created_at"),
        time("updated_at"),
        time("deleted_at", null=True),
    ]


# The tenant's policy is null where it has none: the setting of that name holds then, and the
# service tier `default`.
tenants: Final = table(
    "tenants",
    uuid("id", key=True),
    text("name", Kept.WORD),
    time("created_at"),
    time("disabled_at", null=True),
    *(
        text(name, Kept.WORD, null=True)
        if value.column_type == "text"
        else integer(name, null=True)
        for name, value in POLICY_VALUES.items()
    ),
    # Null where nothing special is kept or left out.
    text("retention_type", Kept.WORD, null=True),
    # Its data goes some days later, which was done at `purged_at`.
    time("deleted_at", null=True),
    # While it is set, no data of the tenant is removed, whatever its age.
    time("held_at", null=True),
    time("purged_at", null=True),
    unique("name"),
    *(
        CheckConstraint(value.column_check, name=value.name)
        for value in POLICY_VALUES.values()
        if value.column_check is not None
    ),
    lifetime=Lifetime(stays="its name, and when it was purged"),
    access=Access(app="SELECT", runs="SELECT", operated=True, of_runs=True),
    not_exported="the operator's",
)
# The default project of a tenant has the tenant's id. It may have no row, which is the same as a
# row of nulls. `models`: those that it may use, or not, by `models_mode`; null: no list.
# `service_tiers`: those that it may have besides the usual one; null: all of its tenant's.
projects: Final = table(
    "projects",
    tenant_id(),
    uuid("id", key=True),
    text("name", Kept.WORD),
    time("created_at"),
    time("archived_at", null=True),
    text("retention_type", Kept.WORD, null=True),
    text("service_tier_max", Kept.WORD, null=True),
    texts("tools_off", Kept.WORD, null=True),
    text("models_mode", Kept.WORD, null=True),
    texts("models", Kept.WORD, null=True),
    texts("service_tiers", Kept.WORD, null=True),
    text("service_tier_default", Kept.WORD, null=True),
    of_tenant(),
    one_of("models_mode", "allow_list", "deny_list"),
    lifetime=SETTINGS,
    access=Access(app="SELECT, INSERT, UPDATE", operated=True),
    is_upserted=True,
)
service_accounts: Final = table(
    "service_accounts",
    tenant_id(),
    uuid("project_id"),
    uuid("id", key=True),
    text("name", Kept.WORD),
    text("role", Kept.WORD),
    time("created_at"),
    time("deleted_at", null=True),
    refers("project_id", "projects"),
    one_of("role", "owner", "member", "none"),
    index("tenant_id", "project_id"),
    lifetime=SETTINGS,
    access=Access(app="SELECT, INSERT, UPDATE", operated=True),
)
# `dialect` is how its responses are spelled; null: `openai`. `project_id` null: the default
# project, here as in all tables that have it. `pepper_id`: under which pepper `hash` was made.
api_keys: Final = table(
    "api_keys",
    tenant_id(),
    uuid("id", key=True),
    text("name", Kept.WORD),
    bytea("hash", Kept.DIGEST, exported=False),
    text("hint", Kept.WORD),
    time("created_at"),
    time("disabled_at", null=True),
    text("dialect", Kept.WORD, null=True),
    text("kind", Kept.WORD, default="'project'"),
    uuid("project_id", null=True),
    text("owner_type", Kept.WORD, null=True),
    uuid("owner_id", null=True),
    texts("scopes", Kept.WORD, null=True),
    time("expires_at", null=True),
    time("last_used_at", null=True),
    cidrs("allowed_cidrs", null=True),
    texts("allowed_models", Kept.WORD, null=True),
    uuid("replaced_by", null=True),
    uuid("created_by", null=True),
    smallint("pepper_id", null=True, exported=False),
    unique("hash"),
    of_tenant(),
    one_of("dialect", "openai", "openresponses"),
    one_of("kind", "project", "admin"),
    one_of("owner_type", "service_account", "user"),
    index("tenant_id", "project_id"),
    index("tenant_id", "replaced_by", where="replaced_by IS NOT NULL"),
    lifetime=SETTINGS,
    access=Access(
        app=f"SELECT ({_KEY_SEEN}), INSERT, UPDATE ({_KEY_CHANGED})",
        runs="SELECT (tenant_id, id, replaced_by)",
        operated=True,
    ),
)
# Issuers of tokens that a tenant trusts; `transformations` are JSON. `bearer`: a token is a
# credential where the request, too, names the tenant. `unnamed_bearer`: it need not, so no other
# tenant has it of the same issuer and audience; one that was deleted stays, and keeps them.
# Issuers that operators trust are under the nil tenant: their tokens say which of the `tenants`
# (by name; *: any) they are for, and as what of the `roles` (JSON: scopes by role).
identity_providers: Final = table(
    "identity_providers",
    tenant_id(),
    uuid("id", key=True),
    text("name", Kept.OPERATOR),
    text("description", Kept.OPERATOR, null=True),
    text("issuer", Kept.OPERATOR),
    text("audience", Kept.OPERATOR),
    text("discovery_url", Kept.OPERATOR, null=True),
    text("jwks_url", Kept.OPERATOR, null=True),
    bytea("jwks", Kept.OPERATOR, null=True),
    bytea("transformations", Kept.OPERATOR),
    texts("algorithms", Kept.WORD),
    integer("clock_skew_s"),
    integer("lifetime_max_s"),
    boolean("bearer"),
    boolean("unnamed_bearer"),
    texts("tenants", Kept.OPERATOR, null=True, exported=False),
    bytea("roles", Kept.OPERATOR, null=True, exported=False),
    *_edited(),
    CheckConstraint(f"(tenants IS NULL) = (tenant_id <> '{EVERYONE}'::uuid)", name="tenants"),
    # Not by tenant: they are for who has a token, and no tenant yet.
    index("id", name="ix_identity_providers_id"),
    unique_index("uq_identity_providers_unnamed", "issuer", "audience", where="unnamed_bearer"),
    unique_index(
        "uq_identity_providers_bearer",
        "tenant_id",
        "issuer",
        "audience",
        where="bearer AND deleted_at IS NULL",
    ),
    lifetime=SETTINGS,
    access=Access(app="SELECT, INSERT, UPDATE", operated=True, of_others="tenants IS NULL"),
)
# Rules by which an issuer's tokens act for a service account; `matchers` are JSON.
federation_rules: Final = table(
    "federation_rules",
    tenant_id(),
    uuid("id", key=True),
    uuid("provider_id"),
    uuid("project_id"),
    uuid("service_account_id"),
    text("name", Kept.OPERATOR, null=True),
    text("description", Kept.OPERATOR, null=True),
    bytea("matchers", Kept.OPERATOR),
    texts("scopes", Kept.WORD, null=True),
    *_edited(),
    refers("provider_id", "identity_providers"),
    refers("service_account_id", "service_accounts"),
    index("tenant_id", "provider_id"),
    lifetime=SETTINGS,
    access=Access(app="SELECT, INSERT, UPDATE", operated=True),
)
# Until when a tenant lets operators read what its responses say.
content_consents: Final = table(
    "content_consents",
    tenant_id(),
    time("granted_at"),
    time("until"),
    of_tenant(),
    lifetime=Lifetime(expires="when it ends", expired=("until < now()",)),
    access=Access(app=EVERYTHING, runs="SELECT (tenant_id, until), DELETE", of_runs=True),
    not_exported="of the moment; the audit log has it",
    is_upserted=True,
)
# Keys of operators, who run the gateway; rows of the nil tenant.
operator_keys: Final = table(
    "operator_keys",
    tenant_id(),
    uuid("id", key=True),
    text("name", Kept.WORD),
    bytea("hash", Kept.DIGEST),
    text("hint", Kept.WORD),
    time("created_at"),
    time("disabled_at", null=True),
    time("expires_at", null=True),
    time("last_used_at", null=True),
    smallint("pepper_id", null=True),
    text("role", Kept.WORD, null=True),
    unique("hash"),
    lifetime=OF_NO_TENANT,
    access=Access(operated=True),
    not_exported="of no tenant",
)
# Changes and their actors, chained (`gateway.audit`); the nil tenant has the operator's chain.
# `actor` and `details` are JSON. No foreign key: the log outlives the tenant.
audit_log: Final = table(
    "audit_log",
    tenant_id(),
    bigint("number", key=True),
    uuid("id"),
    time("at"),
    text("type", Kept.WORD),
    bytea("actor", Kept.WORD),
    text("target", Kept.ID),
    uuid("project_id", null=True),
    text("address", Kept.WORD, null=True),
    text("request_id", Kept.WORD, null=True),
    bytea("details", Kept.WORD),
    bytea("previous", Kept.DIGEST),
    bytea("hash", Kept.DIGEST),
    unique("tenant_id", "id"),
    index("tenant_id", "at"),
    lifetime=Lifetime(expires=f"{AUDIT_LOG_KEPT_DAYS} days", stays="who did what, without content"),
    access=Access(
        app="SELECT, INSERT",
        runs="SELECT (tenant_id, number, at, hash), INSERT, DELETE",
        operated=True,
    ),
)


# Under the nil tenant. A row is a login link until that is opened, and a session from then on, with
# another hash: `opened_at` is null before. `address` and `agent` are those of the browser.
console_sessions: Final = table(
    "console_sessions",
    tenant_id(),
    uuid("id", key=True),
    text("name", Kept.OPERATOR),
    text("role", Kept.WORD),
    bytea("hash", Kept.DIGEST),
    time("created_at"),
    time("opened_at", null=True),
    time("seen_at", null=True),
    time("expires_at"),
    text("address", Kept.WORD, null=True),
    text("agent", Kept.OPERATOR, null=True),
    unique("hash"),
    lifetime=OF_NO_TENANT,
    access=Access(app=EVERYTHING),
    not_exported="of no tenant",
)
# What a replica is doing, as JSON without content, under the nil tenant. Written once a second
# while somebody looks at any replica: until `watched_until`, which the one looked at sets.
replica_snapshots: Final = table(
    "replica_snapshots",
    tenant_id(),
    text("replica", Kept.WORD, key=True),
    time("at"),
    time("watched_until", null=True),
    bytea("body", Kept.WORD),
    lifetime=OF_NO_TENANT,
    access=Access(runs=EVERYTHING, of_runs=True),
    not_exported=DERIVED,
    is_upserted=True,
    prefixes=["UNLOGGED"],
)
