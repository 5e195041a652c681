"""Types of data retention, in OpenAI's words."""

from __future__ import annotations

from typing import Final

from gateway.errors import InvalidRequest

ZERO: Final = "zero_data_retention"
NONE: Final = "none"
"""The default: the policy of the tenant says how long."""
ORGANIZATION_DEFAULT: Final = "organization_default"
OF_ORGANIZATIONS: Final = (ZERO, NONE)
"""`none` is ours: OpenAI's organizations have no such object instead."""
OF_PROJECTS: Final = (ORGANIZATION_DEFAULT, NONE, ZERO)
UNSUPPORTED: Final = (
    "modified_abuse_monitoring",
    "enhanced_zero_data_retention",
    "enhanced_modified_abuse_monitoring",
)
"""OpenAI's others: nothing is monitored here."""


def keeps_nothing(organization: str | None, project: str | None) -> bool:
    """Return True if zero retention holds for a project."""
    if project is None or project == ORGANIZATION_DEFAULT:
        return organization == ZERO
    return project == ZERO


def check_type(retention_type: str, *, of_project: bool) -> None:
    allowed = OF_PROJECTS if of_project else OF_ORGANIZATIONS
    if retention_type in allowed:
        return
    listed = ", ".join(f"'{one}'" for one in allowed)
    why = (
        "is not supported here" if retention_type in UNSUPPORTED else "is no type of data retention"
    )
    raise InvalidRequest(
        f"That {why}: 'retention_type' is one of {listed}.",
        code="invalid_value",
        param="retention_type",
    )
