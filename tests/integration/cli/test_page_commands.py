"""`pages`: what an operator puts into the local index."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import commands
from gateway.errors import ResourceNotFound, StartupError
from tests.integration.cli.test_access_commands import environment, printed

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["environment"]


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_pages_are_added_listed_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "one.md").write_text("# One\n\nText.\n")
    (folder / "two.html").write_text("<title>Two</title><p>Text.")
    assert "2 added" in printed("pages", "add", str(folder), "--url", "https://d.example/x/")
    printed("tenants", "create", "acme")
    assert "added       https://pages.invalid/one.md One" in printed(
        "pages", "add", str(folder / "one.md"), "--tenant", "acme"
    )
    listed = json.loads(printed("pages", "list", "--json"))
    assert [(one["url"], one["title"], one["tenant"]) for one in listed] == [
        ("https://d.example/x/one.md", "One", None),
        ("https://d.example/x/two.html", "Two", None),
        ("https://pages.invalid/one.md", "One", "acme"),
    ]
    table = printed("pages", "list", "--tenant", "acme").splitlines()
    assert [line.split()[:3] for line in table] == [
        ["URL", "TITLE", "FOR"],
        ["https://pages.invalid/one.md", "One", "acme"],
    ]
    assert "2 removed" in printed("pages", "remove", "https://d.example/x/")
    assert CliRunner().invoke(commands, ["pages", "remove", "https://d.example/x/"]).exit_code == 1
    assert "1 removed" in printed(
        "pages", "remove", "https://pages.invalid/one.md", "--tenant", "acme"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_what_cannot_be_added_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot read"):
        printed("pages", "add", str(tmp_path / "nothing"))
    with pytest.raises(ResourceNotFound):
        printed("pages", "add", str(tmp_path), "--tenant", "nobody")
    refused = CliRunner().invoke(commands, ["pages", "add", "http://127.0.0.1:1/"])
    assert refused.exit_code == 1
    assert "port 1 is not open to tools" in refused.output
    assert "tools.web.allowed_hosts" in refused.output
    for wrong in (
        [str(tmp_path), "--url", "docs"],
        [str(tmp_path), "--url", "http://[::1"],
        [str(tmp_path), "--url", "https://docs.example/\x01"],
        ["http://[::1"],
        ["http://docs.example:99999/"],
    ):
        ended = CliRunner().invoke(commands, ["pages", "add", *wrong])
        assert ended.exit_code == 2, wrong
        assert "expected a URL" in ended.output
