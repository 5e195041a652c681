"""What keeps a tree from being released. Each check returns what is missing, as lines to print."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tests.load import readme_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

LOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "requirements.lock": ("web", "mcp", "sandbox", "chat"),
    "requirements-demo.lock": ("web", "mcp", "sandbox", "chat", "embedded"),
    "requirements-dev.lock": ("web", "mcp", "sandbox", "chat", "embedded", "dev"),
}
"""The extras and groups that each has to satisfy."""
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE)
_SECTION: Final = re.compile(r"^## \[([^]]+)\](.*)\n((?:(?!## \[).*\n?)*)", re.MULTILINE)


def git(root: Path, *arguments: str) -> str:
    """Return what git prints. Raises `CalledProcessError`."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def version_of(root: Path) -> str:
    text = (root / "gateway" / "__init__.py").read_text("utf-8")
    (version,) = re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    return str(version)


def version(root: Path) -> Iterator[str]:
    """Find a version that is none, or is tagged already."""
    current = version_of(root)
    try:
        parsed = Version(current)
    except InvalidVersion:
        yield f"{current} in gateway/__init__.py is no version of PEP 440"
        return
    if tags := git(root, "tag", "--list", f"v{parsed}").split():
        yield f"{tags[0]} is tagged already: choose another version in gateway/__init__.py"


def changelog(root: Path) -> Iterator[str]:
    """Find entries that are in no version, and a version without entries or date."""
    current = version_of(root)
    text = (root / "CHANGELOG.md").read_text("utf-8")
    sections = {name: (rest, body.strip()) for name, rest, body in _SECTION.findall(text)}
    if entries := len(re.findall(r"^- ", sections.get("Unreleased", ("", ""))[1], re.MULTILINE)):
        yield f"CHANGELOG.md has {entries} entries in [Unreleased]: move them to [{current}]"
    rest, body = sections.get(current, ("", ""))
    if not body:
        yield f"CHANGELOG.md has no entries in [{current}]"
    if not re.fullmatch(r" - \d{4}-\d\d-\d\d", rest):
        yield f"CHANGELOG.md has no date: ## [{current}] - YYYY-MM-DD"


def tree(root: Path) -> Iterator[str]:
    """Find what is not committed."""
    if changed := git(root, "status", "--porcelain").splitlines():
        yield f"not committed: {len(changed)} files, such as {changed[0][3:]}"


def locks(root: Path) -> Iterator[str]:
    """Find dependencies that a lock file does not satisfy."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    for name, extras in LOCKS.items():
        text = (root / name).read_text("utf-8")
        pins = {canonicalize_name(package): version for package, version in _PIN.findall(text)}
        for requirement in _requirements(project, extras):
            pinned = pins.get(canonicalize_name(requirement.name))
            if pinned is None or pinned not in requirement.specifier:
                yield f"{name} has {pinned or 'none'} for {requirement}: make lock"


def _requirements(project: dict[str, Any], extras: tuple[str, ...]) -> list[Requirement]:
    optional = project["project"]["optional-dependencies"] | project["dependency-groups"]
    chosen = [project["project"]["dependencies"], *(optional[extra] for extra in extras)]
    return [Requirement(text) for group in chosen for text in group]


def figures(_: Path) -> Iterator[str]:
    """Find figures in README that are not those of the last measurement, or are old."""
    measured = readme_figures.read()
    if readme_figures.in_readme() != readme_figures.section(measured):
        yield "README has other figures than tests/load/results/readme.json"
    for workload, one in sorted(measured.items()):
        command = f"make bench ONLY={workload}"
        if one["commit"] is None:
            yield f"figures of an unknown commit: {command}"
        elif (age := readme_figures.commits_since(one["commit"])) is None:
            yield f"figures of {one['commit']}, which is not in this history: {command}"
        elif age > readme_figures.COMMITS_MAX:
            yield f"figures of {age} commits ago: {command}"


def tests(root: Path) -> Iterator[str]:
    """Find tests that failed on this machine, or were not run since the last commit."""
    cache = root / ".pytest_cache" / "v" / "cache"
    known = cache / "nodeids"
    if not known.exists():
        yield "no tests were run here: make check"
        return
    if known.stat().st_mtime < int(git(root, "log", "-1", "--format=%ct")):
        yield "no tests were run here since the last commit: make check"
    failed = cache / "lastfailed"
    if failed.exists() and (names := list(json.loads(failed.read_text("utf-8")))):
        yield f"{len(names)} tests failed here when they were last run, such as {names[0]}"


CHECKS: Final[tuple[Callable[[Path], Iterator[str]], ...]] = (
    *(version, changelog, tree, locks, figures, tests),
)
