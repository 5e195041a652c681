"""expand limits: what tenants, projects and keys may use, what that costs, and what is spent.

Tables only, and two columns of `usage` with the parts of the second. The price of a line is put
there by the database, whoever writes it: replicas of the release before do not know of prices, and
what they meter is paid for, too. `buckets` and `limit_reports` are UNLOGGED: a crash may empty
them.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "b91f3c7ae264"
down_revision: str | None = "b91f4e07d6a2"
branch_labels: str | None = None
depends_on: str | None = None

APP_ROLE = "harmony_gateway_app"
RUNS_ROLE = "harmony_gateway_runs"
CURRENT_TENANT = "nullif(current_setting('app.tenant_id', true), '')::uuid"
NOBODY = "00000000-0000-0000-0000-000000000000"
COSTS = ("cost_nano", "input_cost_nano", "cached_cost_nano", "output_cost_nano", "tools_cost_nano")

TYPES: dict[str, Any] = {
    "uuid": sa.Uuid(),
    "text": sa.Text(),
    "bytea": sa.LargeBinary(),
    "integer": sa.Integer(),
    "smallint": sa.SmallInteger(),
    "bigint": sa.BigInteger(),
    "timestamptz": sa.DateTime(timezone=True),
    "double precision": sa.Double(),
}
TABLES = {
    "limits": (
        "tenant_id uuid!, scope text!, scope_id uuid!, model text!, what text!, window_s integer!,"
        " value bigint!, mode text!, updated_at timestamptz!",
        "tenant_id scope scope_id model what window_s",
    ),
    "budgets": (
        "tenant_id uuid!, id uuid!, scope text!, scope_id uuid!, unit text!, span text!,"
        " cap bigint!, mode text!, created_at timestamptz!",
        "tenant_id id",
    ),
    "spend_alerts": (
        "tenant_id uuid!, id uuid!, scope text!, scope_id uuid!, unit text!, span text!,"
        " threshold bigint!, channel bytea!, created_at timestamptz!",
        "tenant_id id",
    ),
    "prices": (
        "tenant_id uuid!, id uuid!, component text!, model text!, service_tier text!,"
        " nano_per_unit bigint!, valid_from timestamptz!, valid_until timestamptz",
        "tenant_id id component",
    ),
    "spend": (
        "tenant_id uuid!, meter text!, starts_at timestamptz!, replica text!, amount bigint!,"
        " at timestamptz!",
        "tenant_id meter starts_at replica",
    ),
    "alert_firings": (
        "tenant_id uuid!, alert_id uuid!, starts_at timestamptz!, fired_at timestamptz!,"
        " sent_at timestamptz, attempts smallint!, due_at timestamptz!",
        "tenant_id alert_id starts_at",
    ),
    "buckets": (
        "tenant_id uuid!, name text!, level double precision!, at timestamptz!,"
        " granted double precision!",
        "tenant_id name",
    ),
    "limit_reports": (
        "tenant_id uuid!, name text!, replica text!, at timestamptz!, amount bigint!",
        "tenant_id name replica",
    ),
}
OPERATED = ("limits", "budgets", "spend_alerts", "prices")
UNLOGGED = ("buckets", "limit_reports")


def upgrade() -> None:
    for name, (columns, key) in TABLES.items():
        make_table(name, columns, key.split())
    op.create_unique_constraint(
        "uq_budgets_tenant_id_scope", "budgets", ["tenant_id", "scope", "scope_id", "unit", "span"]
    )
    for name in ("price_id", *COSTS):
        op.add_column("usage", sa.Column(name, TYPES["uuid" if name == "price_id" else "bigint"]))
    make_pricing()


def downgrade() -> None:
    op.execute("DROP TRIGGER price_line ON usage")
    op.execute("DROP FUNCTION price_line()")
    for name in (*COSTS, "price_id"):
        op.drop_column("usage", name)
    for name in reversed(TABLES):
        op.drop_table(name)


def make_table(name: str, columns: str, key: list[str]) -> None:
    described = [column.split(maxsplit=1) for column in columns.split(", ")]
    options: dict[str, Any] = {"prefixes": ["UNLOGGED"]} if name in UNLOGGED else {}
    op.create_table(
        name,
        *(
            sa.Column(
                column,
                TYPES[kind.removesuffix("!")],
                nullable=not kind.endswith("!"),
                autoincrement=False,
            )
            for column, kind in described
        ),
        sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"),
        **options,
    )
    op.execute(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY own_tenant ON {name} USING (tenant_id = {CURRENT_TENANT})")
    if name in OPERATED:
        op.execute(f"CREATE POLICY operator ON {name} USING (current_user <> '{APP_ROLE}')")
        may = "SELECT" if name == "prices" else "SELECT, INSERT, UPDATE, DELETE"
        op.execute(f"GRANT {may} ON {name} TO {APP_ROLE}")
    if name == "prices":
        op.execute(f"CREATE POLICY shared ON {name} USING (tenant_id = '{NOBODY}'::uuid)")
    is_runs = f"current_user = '{RUNS_ROLE}'"
    op.execute(f"CREATE POLICY runs ON {name} TO {RUNS_ROLE} USING ({is_runs})")
    may = "SELECT" if name in OPERATED else "SELECT, INSERT, UPDATE, DELETE"
    op.execute(f"GRANT {may} ON {name} TO {RUNS_ROLE}")


def make_pricing() -> None:
    """What a line costs, at the price of when its response ended: see `gateway.limits.money`."""
    op.execute("""
CREATE FUNCTION price_line() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    priced record;
    tier text := coalesce(to_jsonb(NEW) ->> 'service_tier', 'default');
    searches bigint := least(NEW.web_searches, NEW.tool_calls);
BEGIN
    IF NEW.price_id IS NOT NULL OR NEW.cost_nano IS NOT NULL THEN
        RETURN NEW;
    END IF;
    SELECT p.tenant_id, p.id INTO priced FROM prices p
    WHERE p.tenant_id IN (NEW.tenant_id, '00000000-0000-0000-0000-000000000000')
      AND p.model = NEW.model AND p.service_tier IN (tier, '*')
      AND p.valid_from <= NEW.at AND (p.valid_until IS NULL OR NEW.at < p.valid_until)
    ORDER BY p.tenant_id <> NEW.tenant_id, p.service_tier = '*', p.valid_from DESC,
             p.id DESC
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    NEW.price_id := priced.id;
    SELECT coalesce(of_input, 0) * (NEW.input_tokens - NEW.cached_tokens),
           coalesce(of_cached, of_input, 0) * NEW.cached_tokens,
           coalesce(of_output, 0) * NEW.output_tokens,
           coalesce(of_call, 0) * (NEW.tool_calls - searches)
           + coalesce(of_search, of_call, 0) * searches
    INTO NEW.input_cost_nano, NEW.cached_cost_nano, NEW.output_cost_nano, NEW.tools_cost_nano
    FROM (
        SELECT max(nano_per_unit) FILTER (WHERE component = 'input') AS of_input,
               max(nano_per_unit) FILTER (WHERE component = 'input_cached') AS of_cached,
               max(nano_per_unit) FILTER (WHERE component = 'output') AS of_output,
               max(nano_per_unit) FILTER (WHERE component = 'tool_call') AS of_call,
               max(nano_per_unit) FILTER (WHERE component = 'web_search') AS of_search
        FROM prices p WHERE p.tenant_id = priced.tenant_id AND p.id = priced.id
    ) AS each;
    NEW.cost_nano := NEW.input_cost_nano + NEW.cached_cost_nano + NEW.output_cost_nano
                     + NEW.tools_cost_nano;
    RETURN NEW;
END $$
""")
    op.execute(
        "CREATE TRIGGER price_line BEFORE INSERT ON usage"
        " FOR EACH ROW EXECUTE FUNCTION price_line()"
    )
