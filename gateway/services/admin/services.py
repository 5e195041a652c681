"""All that answers the admin API of the tenants of one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.services.admin.federation import IdentityProviders
    from gateway.services.admin.keys import Keys
    from gateway.services.admin.limits import ProjectLimits
    from gateway.services.admin.projects import Projects
    from gateway.services.admin.retention import RetentionControls
    from gateway.services.admin.service_accounts import ServiceAccounts
    from gateway.services.governance.audit import AuditLogs
    from gateway.services.usage import UsageReports


@dataclass(frozen=True, slots=True)
class AdminServices:
    """One service for each resource."""

    projects: Projects
    service_accounts: ServiceAccounts
    keys: Keys
    identity_providers: IdentityProviders
    limits: ProjectLimits
    usage: UsageReports
    audit: AuditLogs
    retention: RetentionControls
