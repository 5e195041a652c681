"""expand usage corrections.

A response may have further lines, which correct its first one: the primary key has their number.
A release of before writes lines as ever: the number is 0 by default, and it names no key. Indexes
are built while lines are written; only exchanging the two keeps writers waiting, for a moment.

And lines that nobody noted the transaction of are added up by the hour. All others are added by
whoever goes on from the beginning of the transactions, so that each is in the sums once.
"""

from __future__ import annotations

from alembic import op

revision: str = "b39e5f7d1c08"
down_revision: str | None = "6a0d4c92e7f1"
branch_labels: str | None = None
depends_on: str | None = None

RUNS_ROLE = "harmony_gateway_runs"
NEXT = "usage_by_response_and_seq"
ADDED_UP = """
INSERT INTO usage_hours (
    tenant_id, at, project_id, key_id, model, service_tier, background, kind, requests,
    input_tokens, cached_tokens, output_tokens, reasoning_tokens, recomputed_tokens,
    tool_output_tokens, tool_calls, web_searches, voided_tokens, code_sessions,
    cost_nano, input_cost_nano, cached_cost_nano, output_cost_nano, tools_cost_nano
)
SELECT tenant_id, date_trunc('hour', at, 'UTC'), coalesce(project_id, tenant_id), key_id, model,
    'default', false, kind, count(*), sum(input_tokens), sum(cached_tokens),
    sum(output_tokens), sum(reasoning_tokens),
    sum(recomputed_tokens), sum(tool_output_tokens), sum(tool_calls), sum(web_searches), 0, 0,
    0, 0, 0, 0, 0
FROM usage WHERE tx IS NULL
GROUP BY 1, 2, 3, key_id, model, kind
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {NEXT}")
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_usage_tx")
        op.execute(
            "CREATE INDEX CONCURRENTLY ix_usage_tx ON usage (tx, tenant_id, response_id, seq)"
            " WHERE tx IS NOT NULL"
        )
        op.execute(
            f"CREATE UNIQUE INDEX CONCURRENTLY {NEXT} ON usage (tenant_id, response_id, seq)"
        )
    # As the role that sees the lines of all tenants: row-level security binds owners, too.
    op.execute(f"SET LOCAL ROLE {RUNS_ROLE}")
    op.execute(ADDED_UP)
    op.execute("SET LOCAL ROLE NONE")
    op.execute("ALTER TABLE usage DROP CONSTRAINT pk_usage")
    op.execute(f"ALTER TABLE usage ADD CONSTRAINT pk_usage PRIMARY KEY USING INDEX {NEXT}")


def downgrade() -> None:
    op.execute("TRUNCATE usage_hours, usage_minutes, usage_end_user_days, usage_cursors")
    op.execute(f"SET LOCAL ROLE {RUNS_ROLE}")
    op.execute("DELETE FROM usage WHERE seq > 0")
    op.execute("SET LOCAL ROLE NONE")
    op.execute("ALTER TABLE usage DROP CONSTRAINT pk_usage")
    op.execute("ALTER TABLE usage ADD CONSTRAINT pk_usage PRIMARY KEY (tenant_id, response_id)")
    op.drop_index("ix_usage_tx", "usage")
