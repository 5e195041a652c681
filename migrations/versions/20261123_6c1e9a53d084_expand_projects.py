"""expand projects.

Projects of tenants, their service accounts, and what keys may do. The default project of a tenant
has the tenant's id, so rows without a project need no change. `find_caller` returns whole rows of
what a key stands for, so that a column more needs no other function; `find_principal` goes on for
the release before, with those keys alone of which it knows all that they may not do.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, CIDR

revision: str = "6c1e9a53d084"
down_revision: str | None = "2e8b6f40d9a7"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"
CURRENT_PROJECT = "nullif(current_setting('app.project_id', true), '')::uuid"

POLICY = {
    "on_disconnect": "text",
    "log_retention_s": "integer",
    "response_retention_s": "integer",
    "background_running_max": "integer",
    "background_queued_max": "integer",
    "reasoning_summary": "text",
    "reasoning_budget_tokens": "integer",
    "service_tier_max": "text",
    "response_messages": "text",
    "web_search": "text",
    "code_interpreter": "text",
    "mcp": "text",
    "mcp_servers": "text",
    "mcp_approvals": "text",
    "tool_calls_max": "integer",
    "tool_time_max_s": "integer",
    "tool_result_ids_max": "integer",
    "tool_result_bytes_max": "integer",
    "egress": "text",
    "egress_domains": "text",
    "egress_denied_domains": "text",
    "containers_max": "integer",
    "container_memory_max": "text",
    "models": "text",
}
IS_PLAIN_KEY = """
AND k.kind = 'project' AND coalesce(k.project_id, k.tenant_id) = k.tenant_id
    AND coalesce(cardinality(k.scopes), 0) = 0 AND coalesce(cardinality(k.allowed_cidrs), 0) = 0
    AND coalesce(cardinality(k.allowed_models), 0) = 0
    AND (k.expires_at IS NULL OR k.expires_at > now())
"""

OF_PROJECTS = ("responses", "conversations", "containers", "files")
KEY_CHANGED = (
    "name, disabled_at, scopes, expires_at, last_used_at, allowed_cidrs, allowed_models,"
    " replaced_by, hash, pepper_id"
)
KEY_SEEN = (
    "tenant_id, id, name, hint, created_at, disabled_at, dialect, kind, project_id, owner_type,"
    " owner_id, scopes, expires_at, last_used_at, allowed_cidrs, allowed_models, replaced_by,"
    " created_by, pepper_id"
)


def timestamp(name: str, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    make_tables()
    widen_keys()
    for table in (*OF_PROJECTS, "usage"):
        op.add_column(table, sa.Column("project_id", sa.Uuid()))
    for table in OF_PROJECTS:
        is_inside = "container_id IS NOT NULL OR " if table == "files" else ""
        op.execute(
            f"CREATE POLICY one_project ON {table} AS RESTRICTIVE TO {APP_ROLE} USING"
            f" ({is_inside}{CURRENT_PROJECT} IS NULL"
            f" OR coalesce(project_id, tenant_id) = {CURRENT_PROJECT})"
        )
    op.execute(f"GRANT SELECT (project_id) ON responses TO {RUNS_ROLE}")
    make_find_principal(IS_PLAIN_KEY)
    make_functions()


def downgrade() -> None:
    op.execute("DROP FUNCTION find_caller(bytea)")
    op.execute("DROP FUNCTION find_operator(bytea)")
    make_find_principal("")
    for table in OF_PROJECTS:
        op.execute(f"DROP POLICY one_project ON {table}")
    for table in (*OF_PROJECTS, "usage"):
        op.drop_column(table, "project_id")
    op.execute(f"REVOKE ALL ON api_keys FROM {APP_ROLE}")
    for name in (
        *("kind", "project_id", "owner_type", "owner_id", "scopes", "expires_at", "last_used_at"),
        *("allowed_cidrs", "allowed_models", "replaced_by", "created_by", "pepper_id"),
    ):
        op.drop_column("api_keys", name)
    for table in ("operator_keys", "service_accounts", "projects"):
        op.drop_table(table)


def make_tables() -> None:
    op.create_table(
        "projects",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        timestamp("created_at", nullable=False),
        timestamp("archived_at"),
        sa.Column("retention_type", sa.Text()),
        sa.Column("service_tier_max", sa.Text()),
        sa.Column("tools_off", ARRAY(sa.Text())),
        sa.Column("models_mode", sa.Text()),
        sa.Column("models", ARRAY(sa.Text())),
        sa.CheckConstraint(
            "models_mode IN ('allow_list', 'deny_list')", name=op.f("ck_projects_models_mode")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_projects_tenants"),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_projects"),
    )
    op.create_table(
        "service_accounts",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        timestamp("created_at", nullable=False),
        timestamp("deleted_at"),
        sa.CheckConstraint(
            "role IN ('owner', 'member', 'none')", name=op.f("ck_service_accounts_role")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "project_id"],
            ["projects.tenant_id", "projects.id"],
            name="fk_service_accounts_projects",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_service_accounts"),
    )
    op.create_index(
        "ix_service_accounts_tenant_id_project_id", "service_accounts", ["tenant_id", "project_id"]
    )
    op.create_table(
        "operator_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        timestamp("created_at", nullable=False),
        timestamp("disabled_at"),
        timestamp("expires_at"),
        timestamp("last_used_at"),
        sa.Column("pepper_id", sa.SmallInteger()),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_operator_keys"),
        sa.UniqueConstraint("hash", name="uq_operator_keys_hash"),
    )
    for table in ("projects", "service_accounts", "operator_keys"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY own_tenant ON {table} USING (tenant_id = {CURRENT_TENANT})")
        op.execute(f"CREATE POLICY operator ON {table} USING (current_user <> '{APP_ROLE}')")
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON projects, service_accounts TO {APP_ROLE}")


def widen_keys() -> None:
    """What a key may do. The role of tenants may make and change keys, and never read a hash."""
    kind = sa.Column("kind", sa.Text(), nullable=False, server_default=sa.text("'project'"))
    for column in (
        kind,
        sa.Column("project_id", sa.Uuid()),
        sa.Column("owner_type", sa.Text()),
        sa.Column("owner_id", sa.Uuid()),
        sa.Column("scopes", ARRAY(sa.Text())),
        timestamp("expires_at"),
        timestamp("last_used_at"),
        sa.Column("allowed_cidrs", ARRAY(CIDR())),
        sa.Column("allowed_models", ARRAY(sa.Text())),
        sa.Column("replaced_by", sa.Uuid()),
        sa.Column("created_by", sa.Uuid()),
        sa.Column("pepper_id", sa.SmallInteger()),
    ):
        op.add_column("api_keys", column)
    op.create_check_constraint(op.f("ck_api_keys_kind"), "api_keys", "kind IN ('project', 'admin')")
    op.create_check_constraint(
        op.f("ck_api_keys_owner_type"), "api_keys", "owner_type IN ('service_account', 'user')"
    )
    op.create_index("ix_api_keys_tenant_id_project_id", "api_keys", ["tenant_id", "project_id"])
    op.execute(
        f"GRANT SELECT ({KEY_SEEN}), INSERT, UPDATE ({KEY_CHANGED}) ON api_keys TO {APP_ROLE}"
    )


def make_functions() -> None:
    op.execute("""
CREATE FUNCTION find_caller(key_hash bytea)
RETURNS TABLE (tenant tenants, project projects, key api_keys)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t, p, k
    FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
    LEFT JOIN projects p
        ON p.tenant_id = k.tenant_id AND p.id = coalesce(k.project_id, k.tenant_id)
    WHERE k.hash = key_hash;
END
""")
    op.execute("""
CREATE FUNCTION find_operator(key_hash bytea)
RETURNS TABLE (key_id uuid, name text, expires_in_s double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT k.id, k.name, CAST(extract(epoch FROM k.expires_at - now()) AS double precision)
    FROM operator_keys k
    WHERE k.hash = key_hash AND k.disabled_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > now());
END
""")
    for name in ("find_caller", "find_operator"):
        op.execute(f"REVOKE ALL ON FUNCTION {name}(bytea) FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name}(bytea) TO {APP_ROLE}")


def make_find_principal(condition: str) -> None:
    """In the place of the one there is; keys that do not meet the condition are as good as none."""
    result = ", ".join(f"{name} {kind}" for name, kind in POLICY.items())
    columns = ", ".join(f"t.{name}" for name in POLICY)
    op.execute("DROP FUNCTION find_principal(bytea)")
    op.execute(f"""
CREATE FUNCTION find_principal(key_hash bytea)
RETURNS TABLE (
    tenant_id uuid, tenant_name text, key_id uuid, is_enabled boolean, {result}, dialect text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t.id, t.name, k.id, k.disabled_at IS NULL AND t.disabled_at IS NULL, {columns},
        k.dialect
    FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
    WHERE k.hash = key_hash {condition};
END
""")
    op.execute("REVOKE ALL ON FUNCTION find_principal(bytea) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION find_principal(bytea) TO {APP_ROLE}")
