"""The list of policy values: each is described once, and everything is made from that."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import get_args, get_type_hints

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.errors import InvalidRequest
from gateway.settings import Settings
from gateway.store.tables.columns import metadata
from gateway.tenancy.policy import DEFAULT_POLICY, POLICY_VALUES, TenantPolicy, check_changes
from tests.fakes.cases import each


def test_every_field_of_a_policy_is_described() -> None:
    assert list(POLICY_VALUES) == [field.name for field in fields(TenantPolicy)]
    hints = get_type_hints(TenantPolicy)
    for value in POLICY_VALUES.values():
        assert value.words == get_args(hints[value.name])
        if value.default:  # none is what nobody has to give
            value.check(value.default)


def test_settings_have_the_defaults_of_the_policy() -> None:
    settings = Settings()
    for value in POLICY_VALUES.values():
        if value.setting is not None:
            assert attrgetter(value.setting)(settings) == value.default
    assert settings.tenant_policy == DEFAULT_POLICY


@pytest.mark.slow
def test_each_value_has_a_column_and_an_option() -> None:
    shown = CliRunner().invoke(commands, ["tenants", "set", "--help"], env={"COLUMNS": "300"})
    columns = metadata.tables["tenants"].columns
    for value in POLICY_VALUES.values():
        assert value.option_name in shown.output
        assert value.name in columns


@pytest.mark.parametrize("changes", [{}, {"unheard_of": 1}, {"on_disconnect": "pause"}])
def test_what_is_no_policy_is_refused(changes: dict[str, str | int | None]) -> None:
    with pytest.raises(InvalidRequest):
        check_changes(changes)


def test_numbers_are_refused_beyond_their_bounds() -> None:
    for value in POLICY_VALUES.values():
        if value.column_type == "integer":
            check_changes({value.name: value.least})
            check_changes({value.name: value.most})
            for given in (value.least - 1, value.most + 1, "1"):
                with pytest.raises(InvalidRequest, match=str(value.most)):
                    check_changes({value.name: given})


@pytest.mark.parametrize("given", ["", "a.example", "a.example b.example", "10.0.0.1", "localhost"])
def test_domains_are_taken(given: str) -> None:
    check_changes({"egress_domains": given})


@each(
    "given",
    [
        *("https://a.example", "A.example", "a.example  b.example", "a..example", "*.example"),
        *("a.example:80", "a.example,b.example", " ", "a " * 5000, 1),
    ],
)
def test_what_is_no_list_of_domains_is_refused(given: str | int) -> None:
    with pytest.raises(InvalidRequest, match="such as"):
        check_changes({"egress_denied_domains": given})


def test_domains_of_the_configuration_are_checked() -> None:
    tools = {"egress_domains": " A.Example  b.example "}
    assert Settings(tools=tools).tenant_policy.egress_domains == "a.example b.example"
    with pytest.raises(ValidationError, match="spaces between them"):
        Settings(tools={"egress_domains": "https://a.example"})


@pytest.mark.parametrize(
    ("models", "names", "may"),
    [
        ("*", ["any"], True),
        ("a,b", ["a"], True),
        ("a,b", ["c"], False),
        ("a,b", ["c", "b"], True),  # by one of its names
        ("team-*,a", ["team-ad"], True),
        ("team-*", ["tea"], False),
        ("ab", ["a"], False),
    ],
)
def test_a_tenant_may_use_the_models_that_its_policy_names(
    models: str, names: list[str], may: bool
) -> None:
    assert TenantPolicy(models=models).may_use(names) is may


@each("models", ["", "a,", ",a", "a b", "*a", "a**", "x" * 300, 5, "a\n"])
def test_a_list_of_models_that_is_none_is_refused(models: str | int) -> None:
    with pytest.raises(InvalidRequest, match="NAME,NAME"):
        check_changes({"models": models})


@pytest.mark.parametrize("models", ["*", "a", "openai/gpt-oss-20b,team-*", "a,b,c"])
def test_a_list_of_models_has_commas_between_names(models: str) -> None:
    check_changes({"models": models})
