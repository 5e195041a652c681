"""Of whom nothing may be kept."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.errors import InvalidRequest
from gateway.tenancy import Principal, ProjectTerms, TenantId
from gateway.tenancy.retention_types import (
    NONE,
    OF_ORGANIZATIONS,
    OF_PROJECTS,
    ORGANIZATION_DEFAULT,
    UNSUPPORTED,
    ZERO,
    check_type,
    keeps_nothing,
)
from tests.fakes.cases import each


@each("project", [None, *OF_PROJECTS])
@each("organization", [None, *OF_ORGANIZATIONS])
def test_a_type_of_the_project_counts_before_that_of_its_organization(
    organization: str | None, project: str | None
) -> None:
    own = project not in {None, ORGANIZATION_DEFAULT}
    assert keeps_nothing(organization, project) == ((project if own else organization) == ZERO)


def test_types_that_there_are_not_are_refused() -> None:
    for of_project, known in ((True, OF_PROJECTS), (False, OF_ORGANIZATIONS)):
        for one in known:
            check_type(one, of_project=of_project)
        for one in (*UNSUPPORTED, "", "for ever"):
            with pytest.raises(InvalidRequest) as refused:
                check_type(one, of_project=of_project)
            assert refused.value.param == "retention_type"
    with pytest.raises(InvalidRequest):
        check_type(ORGANIZATION_DEFAULT, of_project=False)


def test_what_keeps_nothing_is_cached_for_its_response_alone() -> None:
    tenant, response = TenantId(UUID(int=1)), UUID(int=2)
    kept = Principal(tenant, "acme", UUID(int=3), retention_type=NONE)
    assert kept.cached_for(response) == tenant
    terms = ProjectTerms(retention_type=ZERO)
    unkept = Principal(tenant, "acme", UUID(int=3), project_terms=terms)
    assert unkept.keeps_nothing
    assert unkept.cached_for(response) == response
