"""expand operator issuers.

Any number of tenants may trust the same issuer for the same audience (`named_bearer`); `bearer`,
and with it the one index over all tenants, goes on for those whose tokens need not name a tenant.
And issuers of the operator, whose tokens say which tenant they are for. The functions return whole
rows, as `find_issuers` does. Projects have service tiers of their own; null: as their tenant.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision: str = "f5b2e81c6a04"
down_revision: str | None = "d8f40a7b2e93"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"
TABLE = "operator_issuers"
FUNCTIONS = (
    "find_bearers(text, text[], uuid, text)",
    "find_operator_issuers(text, text[])",
    "find_named(uuid, text, uuid)",
)


def timestamp(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def text(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def upgrade() -> None:
    op.add_column("identity_providers", sa.Column("named_bearer", sa.Boolean()))
    op.execute(
        "UPDATE identity_providers SET named_bearer = true WHERE bearer AND deleted_at IS NULL"
    )
    op.create_index(
        "uq_identity_providers_named",
        "identity_providers",
        ["tenant_id", "issuer", "audience"],
        unique=True,
        postgresql_where=sa.text("named_bearer AND deleted_at IS NULL"),
    )
    op.add_column("projects", sa.Column("service_tiers", ARRAY(sa.Text())))
    op.add_column("projects", text("service_tier_default", nullable=True))
    make_table()
    make_functions()


def downgrade() -> None:
    for name in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION {name}")
    op.drop_table(TABLE)
    op.drop_column("projects", "service_tier_default")
    op.drop_column("projects", "service_tiers")
    op.drop_index("uq_identity_providers_named", "identity_providers")
    op.drop_column("identity_providers", "named_bearer")


def make_table() -> None:
    op.create_table(
        TABLE,
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
        sa.Column("algorithms", ARRAY(sa.Text()), nullable=False),
        sa.Column("clock_skew_s", sa.Integer(), nullable=False),
        sa.Column("lifetime_max_s", sa.Integer(), nullable=False),
        sa.Column("tenants", ARRAY(sa.Text()), nullable=False),
        sa.Column("roles", sa.LargeBinary(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        timestamp("created_at"),
        timestamp("updated_at"),
        timestamp("deleted_at", nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=f"pk_{TABLE}"),
    )
    op.create_index(
        "uq_operator_issuers_issuer",
        TABLE,
        ["tenant_id", "issuer", "audience"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.execute(f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {TABLE} FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON {TABLE} USING (tenant_id = {CURRENT_TENANT})")
    op.execute(f"CREATE POLICY operator ON {TABLE} USING (current_user <> '{APP_ROLE}')")


def make_functions() -> None:
    op.execute("""
CREATE FUNCTION find_bearers(
    asked_issuer text, asked_audiences text[], asked_tenant uuid, asked_name text
)
RETURNS SETOF identity_providers
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT p FROM identity_providers p JOIN tenants t ON t.id = p.tenant_id
    WHERE p.enabled AND p.deleted_at IS NULL AND (p.bearer OR p.named_bearer)
        AND p.issuer = asked_issuer AND p.audience = ANY (asked_audiences)
        AND (t.id = asked_tenant OR t.name = asked_name);
END
""")
    op.execute("""
CREATE FUNCTION find_operator_issuers(asked_issuer text, asked_audiences text[])
RETURNS SETOF operator_issuers
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT o FROM operator_issuers o
    WHERE o.deleted_at IS NULL AND o.issuer = asked_issuer AND o.audience = ANY (asked_audiences);
END
""")
    op.execute("""
CREATE FUNCTION find_named(asked_tenant uuid, asked_name text, asked_project uuid)
RETURNS TABLE (tenant tenants, project projects)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t, j
    FROM tenants t
    LEFT JOIN projects j ON j.tenant_id = t.id AND j.id = coalesce(asked_project, t.id)
    WHERE (t.id = asked_tenant OR t.name = asked_name)
        AND t.disabled_at IS NULL AND t.deleted_at IS NULL AND j.archived_at IS NULL
        AND (j.id IS NOT NULL OR coalesce(asked_project, t.id) = t.id);
END
""")
    for name in FUNCTIONS:
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {APP_ROLE}")
