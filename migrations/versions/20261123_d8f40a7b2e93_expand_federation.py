"""expand federation.

Issuers of tokens that tenants trust, and rules of what their tokens may do. `find_issuers` and
`find_federated` return whole rows, like `find_caller`: who asks has no tenant yet, so the role of
tenants finds by them what it could not see. And whether projects share what is stored.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision: str = "d8f40a7b2e93"
down_revision: str | None = "c8e51a7d3f60"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"
ISSUERS = "uuid, text, text[]"
FEDERATED = "uuid, uuid, uuid"


def timestamp(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def text(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def upgrade() -> None:
    op.add_column("tenants", text("projects_share_responses", nullable=True))
    op.create_check_constraint(
        op.f("ck_tenants_projects_share_responses"),
        "tenants",
        "projects_share_responses IN ('refused', 'allowed')",
    )
    make_tables()
    make_functions()


def downgrade() -> None:
    op.execute(f"DROP FUNCTION find_federated({FEDERATED})")
    op.execute(f"DROP FUNCTION find_issuers({ISSUERS})")
    op.drop_table("federation_rules")
    op.drop_table("identity_providers")
    op.drop_column("tenants", "projects_share_responses")


def make_tables() -> None:
    op.create_table(
        "identity_providers",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        text("name"),
        text("description", nullable=True),
        text("issuer"),
        text("audience"),
        text("discovery_url", nullable=True),
        text("jwks_url", nullable=True),
        sa.Column("jwks", sa.LargeBinary()),
        sa.Column("transformations", sa.LargeBinary(), nullable=False),
        sa.Column("bearer", sa.Boolean(), nullable=False),
        sa.Column("algorithms", ARRAY(sa.Text()), nullable=False),
        sa.Column("clock_skew_s", sa.Integer(), nullable=False),
        sa.Column("lifetime_max_s", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        timestamp("created_at"),
        timestamp("updated_at"),
        timestamp("deleted_at", nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_identity_providers_tenants"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_identity_providers"),
    )
    op.create_index("ix_identity_providers_id", "identity_providers", ["id"])
    op.create_index(
        "uq_identity_providers_bearer",
        "identity_providers",
        ["issuer", "audience"],
        unique=True,
        postgresql_where=sa.text("bearer"),
    )
    op.create_table(
        "federation_rules",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("provider_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("service_account_id", sa.Uuid(), nullable=False),
        text("name", nullable=True),
        text("description", nullable=True),
        sa.Column("matchers", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", ARRAY(sa.Text())),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        timestamp("created_at"),
        timestamp("updated_at"),
        timestamp("deleted_at", nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "provider_id"],
            ["identity_providers.tenant_id", "identity_providers.id"],
            name="fk_federation_rules_identity_providers",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "service_account_id"],
            ["service_accounts.tenant_id", "service_accounts.id"],
            name="fk_federation_rules_service_accounts",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_federation_rules"),
    )
    op.create_index(
        "ix_federation_rules_tenant_id_provider_id",
        "federation_rules",
        ["tenant_id", "provider_id"],
    )
    for table in ("identity_providers", "federation_rules"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY own_tenant ON {table} USING (tenant_id = {CURRENT_TENANT})")
        op.execute(f"CREATE POLICY operator ON {table} USING (current_user <> '{APP_ROLE}')")
        op.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO {APP_ROLE}")


def make_functions() -> None:
    op.execute("""
CREATE FUNCTION find_issuers(asked_id uuid, asked_issuer text, asked_audiences text[])
RETURNS SETOF identity_providers
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT p FROM identity_providers p
    WHERE p.enabled AND p.deleted_at IS NULL AND p.id = asked_id
    UNION ALL
    SELECT p FROM identity_providers p
    WHERE p.enabled AND p.deleted_at IS NULL AND p.bearer AND p.issuer = asked_issuer
        AND p.audience = ANY (asked_audiences);
END
""")
    op.execute("""
CREATE FUNCTION find_federated(asked_tenant uuid, asked_provider uuid, asked_rule uuid)
RETURNS TABLE (tenant tenants, project projects, account service_accounts, rule federation_rules)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t, j, a, r
    FROM federation_rules r
    JOIN identity_providers p ON p.tenant_id = r.tenant_id AND p.id = r.provider_id
    JOIN service_accounts a ON a.tenant_id = r.tenant_id AND a.id = r.service_account_id
    JOIN tenants t ON t.id = r.tenant_id
    LEFT JOIN projects j ON j.tenant_id = r.tenant_id AND j.id = r.project_id
    WHERE r.tenant_id = asked_tenant
        AND (asked_provider IS NULL OR r.provider_id = asked_provider)
        AND (asked_rule IS NULL OR r.id = asked_rule)
        AND r.enabled AND r.deleted_at IS NULL AND p.enabled AND p.deleted_at IS NULL
        AND a.deleted_at IS NULL AND j.archived_at IS NULL
        AND t.disabled_at IS NULL AND t.deleted_at IS NULL
    ORDER BY r.created_at, r.id;
END
""")
    for name in (f"find_issuers({ISSUERS})", f"find_federated({FEDERATED})"):
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {APP_ROLE}")
