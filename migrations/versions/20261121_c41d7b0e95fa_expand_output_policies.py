"""expand output policies.

What an operator decides about a tenant's reasoning and service tiers. `find_principal` returns it
too: a function's result cannot be widened, so it is dropped and made again. Whoever selects `*`
from it by the names of its columns does not notice.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "c41d7b0e95fa"
down_revision: str | None = "8c2f6a1be073"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"

OLD_POLICY = {
    "on_disconnect": "text",
    "log_retention_s": "integer",
    "response_retention_s": "integer",
    "background_running_max": "integer",
    "background_queued_max": "integer",
}
NEW_POLICY = {
    "reasoning_summary": "text",
    "reasoning_budget_tokens": "integer",
    "service_tier_max": "text",
}

CHECKS = {
    "reasoning_summary": "reasoning_summary IN ('analysis', 'off')",
    "reasoning_budget_tokens": "reasoning_budget_tokens >= 0",
    "service_tier_max": "service_tier_max IN ('default', 'priority')",
}


def upgrade() -> None:
    for name, kind in NEW_POLICY.items():
        column = sa.Column(name, sa.Text() if kind == "text" else sa.Integer())
        op.add_column("tenants", column)
        op.create_check_constraint(op.f(f"ck_tenants_{name}"), "tenants", CHECKS[name])
    make_find_principal({**OLD_POLICY, **NEW_POLICY})


def downgrade() -> None:
    make_find_principal(OLD_POLICY)
    for name in NEW_POLICY:
        op.drop_column("tenants", name)


def make_find_principal(policy: dict[str, str]) -> None:
    """In the place of the one there is; `policy` are columns of `tenants` with their types."""
    result = ", ".join(f"{name} {kind}" for name, kind in policy.items())
    columns = ", ".join(f"t.{name}" for name in policy)
    op.execute("DROP FUNCTION find_principal(bytea)")
    op.execute(f"""
CREATE FUNCTION find_principal(key_hash bytea)
RETURNS TABLE (
    tenant_id uuid, tenant_name text, key_id uuid, is_enabled boolean, {result}
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t.id, t.name, k.id, k.disabled_at IS NULL AND t.disabled_at IS NULL, {columns}
    FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
    WHERE k.hash = key_hash;
END
""")
    op.execute("REVOKE ALL ON FUNCTION find_principal(bytea) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION find_principal(bytea) TO {APP_ROLE}")
