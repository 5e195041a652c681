"""The functions and triggers of the schema.

The `find_*` functions run as the owner of the tables, who passes the policies that hide tenants and
keys: for transactions without a tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.store.schema import APP_ROLE, AUDIT_LOG_KEPT_DAYS, EVERYONE


@dataclass(frozen=True, slots=True)
class Function:
    """A look-up that only the role of tenants and the owner may execute."""

    name: str
    parameters: str
    returns: str
    body: str

    @property
    def signature(self) -> str:
        types = ", ".join(one.split()[1] for one in self.parameters.split(", "))
        return f"{self.name}({types})"

    @property
    def create(self) -> str:
        return (
            f"CREATE FUNCTION {self.name}({self.parameters}) RETURNS {self.returns}"
            " LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog"
            f" BEGIN ATOMIC {self.body}; END"
        )

    @property
    def close(self) -> str:
        # New functions may be executed by everybody.
        return f"REVOKE ALL ON FUNCTION {self.signature} FROM PUBLIC"

    @property
    def grant(self) -> str:
        return f"GRANT EXECUTE ON FUNCTION {self.signature} TO {APP_ROLE}"


FUNCTIONS: Final = (
    Function(
        "find_caller",
        "key_hash bytea",
        "TABLE (tenant tenants, project projects, key api_keys)",
        """
    SELECT t, p, k
    FROM api_keys k
    JOIN tenants t ON t.id = k.tenant_id
    LEFT JOIN projects p
        ON p.tenant_id = k.tenant_id AND p.id = COALESCE(k.project_id, k.tenant_id)
    WHERE k.hash = key_hash""",
    ),
    Function(
        "find_operator",
        "key_hash bytea",
        "TABLE (key_id uuid, name text, role text)",
        """
    SELECT k.id, k.name, k.role
    FROM operator_keys k
    WHERE k.hash = key_hash AND k.disabled_at IS NULL
      AND (k.expires_at IS NULL OR k.expires_at > now())""",
    ),
    Function(
        "find_issuers",
        "asked_id uuid, asked_issuer text, asked_audiences text[]",
        "SETOF identity_providers",
        """
    SELECT p FROM identity_providers p
    WHERE p.enabled AND p.deleted_at IS NULL AND p.tenants IS NULL AND p.id = asked_id
    UNION ALL
    SELECT p FROM identity_providers p
    WHERE p.enabled AND p.deleted_at IS NULL AND p.unnamed_bearer
      AND p.issuer = asked_issuer AND p.audience = ANY (asked_audiences)""",
    ),
    Function(
        "find_bearers",
        "asked_issuer text, asked_audiences text[], asked_tenant uuid, asked_name text",
        "SETOF identity_providers",
        """
    SELECT p
    FROM identity_providers p JOIN tenants t ON t.id = p.tenant_id
    WHERE p.enabled AND p.deleted_at IS NULL AND p.bearer
      AND p.issuer = asked_issuer AND p.audience = ANY (asked_audiences)
      AND (t.id = asked_tenant OR t.name = asked_name)""",
    ),
    Function(
        "find_federated",
        "asked_tenant uuid, asked_provider uuid, asked_rule uuid",
        "TABLE (tenant tenants, project projects, account service_accounts, rule federation_rules)",
        """
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
    ORDER BY r.created_at, r.id""",
    ),
    Function(
        "find_operator_issuers",
        "asked_issuer text, asked_audiences text[]",
        "SETOF identity_providers",
        """
    SELECT p FROM identity_providers p
    WHERE p.deleted_at IS NULL AND p.tenants IS NOT NULL
      AND p.issuer = asked_issuer AND p.audience = ANY (asked_audiences)""",
    ),
    Function(
        "find_named",
        "asked_tenant uuid, asked_name text, asked_project uuid",
        "TABLE (tenant tenants, project projects)",
        """
    SELECT t, j
    FROM tenants t
    LEFT JOIN projects j ON j.tenant_id = t.id AND j.id = COALESCE(asked_project, t.id)
    WHERE (t.id = asked_tenant OR t.name = asked_name)
      AND t.disabled_at IS NULL AND t.deleted_at IS NULL AND j.archived_at IS NULL
      AND (j.id IS NOT NULL OR COALESCE(asked_project, t.id) = t.id)""",
    ),
)

# Entries are removed by age alone.
_KEEP_AUDIT_LOG: Final = f"""
CREATE FUNCTION keep_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < now() - interval '{AUDIT_LOG_KEPT_DAYS} days' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is only added to' USING ERRCODE = 'insufficient_privilege';
END $$
"""
# A tenant's own price comes before that of all tenants, that of the service tier before that of any
# tier, and of these the newest. A line that has a price or a cost keeps it.
_PRICE_LINE: Final = f"""
CREATE FUNCTION price_line() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    priced record;
    tier text := coalesce(NEW.service_tier, 'default');
    searches bigint := least(NEW.web_searches, NEW.tool_calls);
BEGIN
    IF NEW.price_id IS NOT NULL OR NEW.cost_nano IS NOT NULL THEN
        RETURN NEW;
    END IF;
    SELECT p.tenant_id, p.id INTO priced FROM prices p
    WHERE p.tenant_id IN (NEW.tenant_id, '{EVERYONE}')
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
"""  # noqa: S608 - a constant
DROP_LEDGER_TX: Final = "DROP FUNCTION ledger_tx(xid8)"


def create_ledger_tx(added: int) -> str:
    """Return the statement that makes the function, which adds `added` to an id.

    So lines that a new cluster writes lie behind those of a dump (`store.ledger.cursors`).
    """
    return f"""
CREATE OR REPLACE FUNCTION ledger_tx(id xid8) RETURNS xid8
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CAST(CAST(CAST(CAST(id AS text) AS bigint) + {added} AS text) AS xid8)
$$
"""


TRIGGERS: Final = {
    "keep_audit_log()": (
        _KEEP_AUDIT_LOG,
        "CREATE TRIGGER keep_entries BEFORE UPDATE OR DELETE ON audit_log"
        " FOR EACH ROW EXECUTE FUNCTION keep_audit_log()",
        "CREATE TRIGGER keep_all BEFORE TRUNCATE ON audit_log"
        " FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_log()",
    ),
    "price_line()": (
        _PRICE_LINE,
        "CREATE TRIGGER price_line BEFORE INSERT ON usage"
        " FOR EACH ROW EXECUTE FUNCTION price_line()",
    ),
}
