"""Of whom nothing may be kept."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.tenancy.policy import (
    ORGANIZATION_DEFAULT,
    ORGANIZATION_RETENTION_TYPES,
    PROJECT_RETENTION_TYPES,
    UNSUPPORTED_RETENTION_TYPES,
    ZERO_RETENTION,
    check_retention_type,
    keeps_nothing,
)
from tests.fakes.cases import each


@each("project", [None, *PROJECT_RETENTION_TYPES])
@each("organization", [None, *ORGANIZATION_RETENTION_TYPES])
def test_a_type_of_the_project_counts_before_that_of_its_organization(
    organization: str | None, project: str | None
) -> None:
    own = project not in {None, ORGANIZATION_DEFAULT}
    assert keeps_nothing(organization, project) == (
        (project if own else organization) == ZERO_RETENTION
    )


def test_types_that_there_are_not_are_refused() -> None:
    for of_project, known in (
        (True, PROJECT_RETENTION_TYPES),
        (False, ORGANIZATION_RETENTION_TYPES),
    ):
        for one in known:
            check_retention_type(one, of_project=of_project)
        for one in (*UNSUPPORTED_RETENTION_TYPES, "", "for ever"):
            with pytest.raises(InvalidRequest) as refused:
                check_retention_type(one, of_project=of_project)
            assert refused.value.param == "retention_type"
    with pytest.raises(InvalidRequest):
        check_retention_type(ORGANIZATION_DEFAULT, of_project=False)
