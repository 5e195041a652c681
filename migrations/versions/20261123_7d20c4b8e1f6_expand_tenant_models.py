"""expand tenant models.

Which models a tenant may ask for; null: all. `find_principal` returns it too, so it is made again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "7d20c4b8e1f6"
down_revision: str | None = "9d27e4b1c06f"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"

OLD_POLICY = {
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
}


def upgrade() -> None:
    op.add_column("tenants", sa.Column("models", sa.Text()))
    make_find_principal({**OLD_POLICY, "models": "text"})


def downgrade() -> None:
    make_find_principal(OLD_POLICY)
    op.drop_column("tenants", "models")


def make_find_principal(policy: dict[str, str]) -> None:
    """In the place of the one there is; `policy` are columns of `tenants` with their types."""
    result = ", ".join(f"{name} {kind}" for name, kind in policy.items())
    columns = ", ".join(f"t.{name}" for name in policy)
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
    WHERE k.hash = key_hash;
END
""")
    op.execute("REVOKE ALL ON FUNCTION find_principal(bytea) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION find_principal(bytea) TO {APP_ROLE}")
