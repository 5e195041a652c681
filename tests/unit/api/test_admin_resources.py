"""Audit data that derives from request bodies, and the SQL of Core statements."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import bindparam, select

from gateway.admin.projects import HostedToolsUpdate, ProjectCreate, ProjectUpdate, ToolPermission
from gateway.admin.routes import audited
from gateway.admin.transactions import CoreStatement, of_tenant, update_by_id
from gateway.store.tables import TABLES

PROJECTS = TABLES["projects"]


def test_the_audit_log_has_what_a_body_sets_by_the_names_of_the_log() -> None:
    assert audited(ProjectCreate(name="bot")) == {"name": "bot", "title": "bot"}
    assert audited(ProjectUpdate(name="bot")) == {"title": "bot"}
    assert audited(ProjectUpdate()) == {}
    tools = HostedToolsUpdate(mcp=ToolPermission(enabled=False), web_search=None)
    assert audited(tools) == {"mcp": {"enabled": False}}


def test_a_statement_has_its_arguments_in_the_order_of_its_sql() -> None:
    statement = CoreStatement(
        select(PROJECTS.c.id).where(*of_tenant(PROJECTS, "id"), PROJECTS.c.name == "fixed")
    )
    assert statement.sql.count("$") == 3
    assert statement.arguments({"id": 2, "tenant": 1, "unused": 0}) == [1, 2, "fixed"]
    with pytest.raises(KeyError):
        statement.arguments({"tenant": 1})


def test_an_update_of_the_same_columns_is_compiled_once() -> None:
    statement = update_by_id(PROJECTS, "name")
    assert update_by_id(PROJECTS, "name") is statement
    assert statement.names == ("name", "tenant", "id")


def test_a_parameter_may_occur_more_than_once() -> None:
    name: Any = bindparam("name")
    statement = CoreStatement(
        select(PROJECTS.c.id).where((PROJECTS.c.name == name) | (PROJECTS.c.name > name))
    )
    assert len(statement.arguments({"name": "a"})) == len(statement.names)
