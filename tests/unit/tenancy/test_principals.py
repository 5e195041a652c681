from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from gateway.tenancy import (
    ApiKey,
    KeyTerms,
    Principal,
    Project,
    ProjectId,
    TenantId,
    default_project,
)
from gateway.tenancy.policy import ModelPermissions

TENANT = TenantId(UUID(int=1))
OTHER = ProjectId(UUID(int=2))
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def test_what_names_no_project_is_of_the_default_one() -> None:
    assert default_project(TENANT) == TENANT
    assert Project(default_project(TENANT), TENANT, "a", NOW).is_default
    assert not Project(OTHER, TENANT, "a", NOW).is_default
    for project in (None, OTHER):
        key = ApiKey(UUID(int=3), TENANT, "a", "wxyz", NOW, project_id=project)
        principal = Principal(TENANT, "acme", key.id, project_id=project)
        assert key.project == principal.project == (project or default_project(TENANT))


def test_models_of_a_key_are_a_list_of_what_it_may_ask_for() -> None:
    assert KeyTerms().permissions is None
    assert KeyTerms(models=("a*",)).permissions == ModelPermissions("allow_list", ("a*",))
