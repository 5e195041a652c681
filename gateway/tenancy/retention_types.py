"""Types of data retention of tenants and their projects, in OpenAI's words. For how long logs and
responses are kept: `gateway.tenancy.policy`.
"""

from __future__ import annotations

from typing import Final

from gateway.errors import InvalidRequest

ZERO: Final = "zero_data_retention"
"""No content is written: neither requests nor responses."""
NONE: Final = "none"
"""The default: content is stored as long as the policy of the tenant says."""
ORGANIZATION_DEFAULT: Final = "organization_default"
"""Type of a project that has the type of its tenant."""
OF_ORGANIZATIONS: Final = (ZERO, NONE)
"""`none` is ours: OpenAI's organizations have it by having no such object."""
OF_PROJECTS: Final = (ORGANIZATION_DEFAULT, NONE, ZERO)
UNSUPPORTED: Final = (
    "modified_abuse_monitoring",
    "enhanced_zero_data_retention",
    "enhanced_modified_abuse_monitoring",
)
"""OpenAI's others: nothing is monitored here, so there is nothing to modify."""


def keeps_nothing(organization: str | None, project: str | None) -> bool:
    """Return True if zero retention holds for a project, by its type and its tenant's.

    None: no type is set.
    """
    if project is None or project == ORGANIZATION_DEFAULT:
        return organization == ZERO
    return project == ZERO


def check_type(retention_type: str, *, of_project: bool) -> None:
    """Raise `InvalidRequest` for an unknown type."""
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
