"""SQL for the values that a line adds to the columns of sums.

Null stands for the default project (whose id is the tenant's), the default tier, no background. A
correction is no request.
"""

from __future__ import annotations

from typing import Final

from gateway.store.schema import COST_COLUMNS
from gateway.store.tables.ledger import SUMMED_BY, SUMS

_KEY_WORDS: Final = {
    "service_tier": "coalesce(line.service_tier, 'default')",
    "background": "coalesce(line.background, false)",
    "project_id": "coalesce(line.project_id, line.tenant_id)",
}
LINE_KEY: Final = {name: _KEY_WORDS.get(name, f"line.{name}") for name in SUMMED_BY if name != "at"}
"""What a line is summed by, but for its time."""
_COUNTED: Final = {
    "requests": "(line.seq = 0)::int",
    "code_sessions": "(line.seq = 0 AND coalesce(line.tools ? 'code_interpreter', false))::int",
}


def _value(name: str) -> str:
    if name in _COUNTED:
        return _COUNTED[name]
    return f"coalesce(line.{name}, 0)" if name in COST_COLUMNS else f"line.{name}"


LINE_VALUES: Final = {name: _value(name) for name in SUMS}
"""What one line has for each sum."""
