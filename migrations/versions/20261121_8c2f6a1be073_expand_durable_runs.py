"""expand durable runs.

Beside the columns: the role that claims, appends and expires for all tenants at once, what it may
touch, and the function that finds a key's tenant together with the tenant's policy.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "8c2f6a1be073"
down_revision: str | None = "5d1e0c7a9b42"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
ROLE = "harmony_gateway_runs"

# As for the role of tenant transactions: roles belong to the cluster, and may have been made by
# the migration of another database, at the same moment or by another owner.
CREATE_ROLE = f"""
DO $$
DECLARE
    needed text := CASE WHEN current_setting('server_version_num')::int >= 160000
                        THEN 'SET' ELSE 'MEMBER' END;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{ROLE}') THEN
        BEGIN
            CREATE ROLE {ROLE} NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_has_role(current_user, '{ROLE}', needed) THEN
        BEGIN
            GRANT {ROLE} TO CURRENT_USER;
        EXCEPTION WHEN unique_violation OR internal_error OR insufficient_privilege THEN
            NULL; -- granted, or its row updated, by a concurrent migration; or see below
        END;
    END IF;
    IF NOT pg_has_role(current_user, '{ROLE}', needed) THEN
        RAISE insufficient_privilege USING MESSAGE =
            format('%1$I must be able to SET ROLE {ROLE}: GRANT {ROLE} TO %1$I', current_user);
    END IF;
END $$
"""

FIND_PRINCIPAL = """
CREATE FUNCTION find_principal(key_hash bytea)
RETURNS TABLE (
    tenant_id uuid, tenant_name text, key_id uuid, is_enabled boolean, on_disconnect text,
    log_retention_s integer, response_retention_s integer,
    background_running_max integer, background_queued_max integer
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t.id, t.name, k.id, k.disabled_at IS NULL AND t.disabled_at IS NULL, t.on_disconnect,
           t.log_retention_s, t.response_retention_s,
           t.background_running_max, t.background_queued_max
    FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
    WHERE k.hash = key_hash;
END
"""

CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"

CLAIM = ("status", "owner", "epoch", "lease_until", "next_entry", "attempts")
"""What the role may change of a response."""

SEEN = (
    *("tenant_id", "id", "key_id", "model", "background", "durable", "streamed", "created_at"),
    *("root_created_at", "completed_at", "parent_id", "request", "plan", "prompt", "fold_version"),
    *CLAIM,
)
"""What it may read of one: not the body."""


def policy_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("on_disconnect", sa.Text()),
        sa.Column("log_retention_s", sa.Integer()),
        sa.Column("response_retention_s", sa.Integer()),
        sa.Column("background_running_max", sa.Integer()),
        sa.Column("background_queued_max", sa.Integer()),
    ]


def durable_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("durable", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("streamed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("plan", sa.LargeBinary()),
        sa.Column("prompt", sa.LargeBinary()),
    ]


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(CREATE_ROLE)
    for column in policy_columns():
        op.add_column("tenants", column)
    op.create_check_constraint(
        op.f("ck_tenants_on_disconnect"), "tenants", "on_disconnect IN ('cancel', 'continue')"
    )
    for column in durable_columns():
        op.add_column("responses", column)
    op.add_column(
        "usage",
        sa.Column("recomputed_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )
    create_idempotency_keys()
    op.execute(FIND_PRINCIPAL)
    op.execute("REVOKE ALL ON FUNCTION find_principal(bytea) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION find_principal(bytea) TO {APP_ROLE}")
    let_runs_in()


def downgrade() -> None:
    """The role stays: other databases of the cluster may use it."""
    for table in ("responses", "events", "tenants"):
        op.execute(f"DROP POLICY runs ON {table}")
    op.execute(f"REVOKE ALL ON responses, events, tenants FROM {ROLE}")
    op.execute("DROP FUNCTION find_principal(bytea)")
    op.drop_table("idempotency_keys")
    op.drop_column("usage", "recomputed_tokens")
    for column in durable_columns():
        op.drop_column("responses", column.name)
    for column in policy_columns():
        op.drop_column("tenants", column.name)


def create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key_hash", sa.LargeBinary(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "key_hash", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "response_id"],
            ["responses.tenant_id", "responses.id"],
            name="fk_idempotency_keys_responses",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_idempotency_keys_tenant_id_response_id",
        "idempotency_keys",
        ["tenant_id", "response_id"],
    )
    op.execute("ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE idempotency_keys FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON idempotency_keys USING (tenant_id = {CURRENT_TENANT})")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_keys TO {APP_ROLE}")


def let_runs_in() -> None:
    # By name: `TO {ROLE}` alone would let in its members too, and the owner is one.
    is_runs = f"current_user = '{ROLE}'"
    for table in ("responses", "events", "tenants", "idempotency_keys"):
        op.execute(f"CREATE POLICY runs ON {table} TO {ROLE} USING ({is_runs})")
    seen, changed = ", ".join(SEEN), ", ".join(CLAIM)
    op.execute(f"GRANT SELECT ({seen}), UPDATE ({changed}), DELETE ON responses TO {ROLE}")
    op.execute(f"GRANT SELECT, INSERT, DELETE ON events TO {ROLE}")
    op.execute(f"GRANT SELECT ON tenants TO {ROLE}")
    op.execute(f"GRANT SELECT, DELETE ON idempotency_keys TO {ROLE}")
