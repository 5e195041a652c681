"""Of whom nothing may be kept."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.tenancy.retention_types import (
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
