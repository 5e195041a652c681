"""expand tool terms.

How much the hosted tools of a tenant may return, where they may connect to, and how many containers
it may have. `find_principal` returns it too, so it is made again, as for every policy. The audit
tells how a call was approved, and what it reached.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "a4c1f7d20b68"
down_revision: str | None = "c5a90f2e7d14"
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
}
NEW_POLICY = {
    "tool_result_ids_max": "integer",
    "tool_result_bytes_max": "integer",
    "egress": "text",
    "egress_domains": "text",
    "egress_denied_domains": "text",
    "containers_max": "integer",
    "container_memory_max": "text",
}
TYPES = {"integer": sa.Integer, "text": sa.Text}
WORDS = {
    "egress": ("refused", "allowed"),
    "container_memory_max": ("1g", "4g", "16g", "64g"),
}
AUDIT = {"approval": sa.Text, "approval_request_id": sa.LargeBinary, "hosts": sa.LargeBinary}


def upgrade() -> None:
    for name, kind in NEW_POLICY.items():
        op.add_column("tenants", sa.Column(name, TYPES[kind]()))
    for name, words in WORDS.items():
        listed = ", ".join(f"'{word}'" for word in words)
        op.create_check_constraint(op.f(f"ck_tenants_{name}"), "tenants", f"{name} IN ({listed})")
    make_find_principal({**OLD_POLICY, **NEW_POLICY})
    for name, column in AUDIT.items():
        op.add_column("tool_calls", sa.Column(name, column()))


def downgrade() -> None:
    for name in AUDIT:
        op.drop_column("tool_calls", name)
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
