"""What `make release-candidate` finds missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.release import checks

ROOT = Path(__file__).parents[3]
AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@example.com")
CHANGELOG = """\
# Changelog

## [Unreleased]
{unreleased}
## [0.1.0]{date}

### Added

- A gateway.
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that may be released, but for what nobody can see in it."""
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text('"""A gateway."""\n\n__version__ = "0.1.0"\n')
    for name in (*checks.LOCKS, "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.format(unreleased="", date=" - 2026-12-01"))
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    commit(tmp_path)
    return tmp_path


def commit(tree: Path) -> None:
    checks.git(tree, "add", "--all")
    checks.git(tree, *AUTHOR, "commit", "--quiet", "--message", "All", "--no-gpg-sign")


def test_nothing_is_missing_where_nothing_is(tree: Path) -> None:
    for check in (checks.version, checks.changelog, checks.tree, checks.locks):
        assert list(check(tree)) == []


@pytest.mark.parametrize(
    ("unreleased", "date", "found"),
    [
        ("\n### Added\n\n- One.\n- Two.\n", " - 2026-12-01", "2 entries"),
        ("", "", "no date"),
        ("", " - soon", "no date"),
    ],
)
def test_a_changelog_that_is_not_done_is_found(
    tree: Path, unreleased: str, date: str, found: str
) -> None:
    text = CHANGELOG.format(unreleased=unreleased, date=date)
    (tree / "CHANGELOG.md").write_text(text)
    (line,) = checks.changelog(tree)
    assert found in line


def test_a_version_that_has_no_entries_is_found(tree: Path) -> None:
    file = tree / "gateway" / "__init__.py"
    file.write_text(file.read_text().replace("0.1.0", "0.2.0"))
    assert any("no entries in [0.2.0]" in line for line in checks.changelog(tree))
    file.write_text(file.read_text().replace("0.2.0", "two"))
    assert [line for line in checks.version(tree) if "PEP 440" in line]


def test_a_version_that_was_released_is_found(tree: Path) -> None:
    checks.git(tree, "tag", "v0.1.0")
    (line,) = checks.version(tree)
    assert "v0.1.0 is tagged" in line


def test_what_is_not_committed_is_found(tree: Path) -> None:
    (tree / "new.py").write_text("")
    (line,) = checks.tree(tree)
    assert line.endswith("new.py")


def test_a_lock_file_that_is_older_than_a_dependency_is_found(tree: Path) -> None:
    file = tree / "pyproject.toml"
    text = file.read_text().replace('"orjson>=3.13"', '"orjson>=99", "not-locked>=1"')
    file.write_text(text)
    lines = list(checks.locks(tree))
    assert len(lines) == 2 * len(checks.LOCKS)
    assert "none for not-locked>=1: make lock" in lines[1]


def test_the_last_result_of_the_tests_is_told(tree: Path) -> None:
    assert list(checks.tests(tree)) == ["no tests were run here: make check"]
    cache = tree / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    nodes = cache / "nodeids"
    nodes.write_text("[]")
    assert list(checks.tests(tree)) == []
    (cache / "lastfailed").write_text('{"tests/a.py::test_a": true}')
    (line,) = checks.tests(tree)
    assert line.startswith("1 tests failed")
    os.utime(nodes, (0, 0))
    assert len(list(checks.tests(tree))) == 2
