"""What becomes of the rows of each table: by a client's DELETE, for a person, by age, for a tenant.

One line for every table there is. A table that is not here fails a test: whoever adds one has to
decide; and what is said here is tried with rows in all of them. `docs/data.md` has the same table.
Shredding the keys of a tenant makes unreadable what `gateway.store.content` calls sealed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What ends a row; empty: nothing does.

    `deleted`: which DELETE of the API. `erased`: which rows go with a person. `expires`: after what
    time. `purged`: whether it goes with its tenant, and if not, `stays` says why.
    """

    deleted: str = ""
    erased: str = ""
    expires: str = ""
    purged: bool = True
    stays: str = ""


_OF_RESPONSE: Final = "its response"
_WITH_RESPONSE: Final = Lifetime(_OF_RESPONSE, "with the response", "with the response")
_SETTINGS: Final = Lifetime()
_NOT_OF_A_TENANT: Final = Lifetime(purged=False, stays="of no tenant, or numbers of the moment")
_NUMBERS: Final = "numbers, for who is shown the bill"
LIFETIMES: Final[Mapping[str, Lifetime]] = {
    "responses": Lifetime(
        "itself", "those for them, and what goes on from these for nobody", "retention.response_s"
    ),
    "messages": _WITH_RESPONSE,
    "events": Lifetime(_OF_RESPONSE, "with the response", "retention.log_s"),
    "flushes": Lifetime(_OF_RESPONSE, "with the response", "a minute after their process"),
    "writers": Lifetime(expires="a minute after their process"),
    "run_secrets": Lifetime(_OF_RESPONSE, "with the response", "when the response ends"),
    "idempotency_keys": Lifetime(_OF_RESPONSE, "with the response", "retention.idempotency_key_s"),
    "tool_approvals": Lifetime(_OF_RESPONSE, "those that were asked for", "7 days after they end"),
    "tool_calls": Lifetime("", "those of the responses", "retention.tool_calls_s"),
    "conversations": Lifetime("itself", "those that the responses are of"),
    "conversation_items": Lifetime("itself, its conversation", "with the conversation"),
    "containers": Lifetime("itself", "those that nobody else uses", "a day after they end"),
    "files": Lifetime("itself, its container", "those that nobody else uses", "as they say"),
    "file_chunks": Lifetime("its file", "with the file", "with the file"),
    "tool_pages": Lifetime("", "those that nobody else was shown", "retention.response_s"),
    "traces": Lifetime("", "those that name the responses", "retention.traces_s"),
    "usage": Lifetime(
        "", "the end user, and tags", "ledger.lines_s", purged=False, stays=f"{_NUMBERS}; no words"
    ),
    "usage_hours": Lifetime(expires="ledger.hours_s", purged=False, stays=_NUMBERS),
    "usage_minutes": Lifetime(expires="ledger.minutes_s", purged=False, stays=_NUMBERS),
    "usage_days": Lifetime(expires="ledger.days_s", purged=False, stays=_NUMBERS),
    "usage_end_user_days": Lifetime("", "those of the end user", "ledger.end_user_days_s"),
    "prices": Lifetime(purged=False, stays=_NUMBERS),
    "audit_log": Lifetime(expires="400 days", purged=False, stays="who did what, without content"),
    "tenants": Lifetime(purged=False, stays="its name, and when it was purged"),
    "background_shares": Lifetime(expires="7 days after they were used"),
    **dict.fromkeys(
        (
            *("projects", "service_accounts", "api_keys", "identity_providers"),
            *("federation_rules", "mcp_servers", "web_documents", "limits", "budgets"),
            *("spend_alerts", "spend", "alert_firings", "buckets", "limit_reports", "stored_bytes"),
            "reseals",
        ),
        _SETTINGS,
    ),
    **dict.fromkeys(
        (
            "operator_keys",
            "operator_issuers",
            "placements",
            "backend_drains",
            "drain_reports",
            "usage_cursors",
        ),
        _NOT_OF_A_TENANT,
    ),
}
"""By table."""
