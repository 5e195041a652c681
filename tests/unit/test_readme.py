"""What people copy from the README and the example is right."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway import __version__
from gateway.cli.commands import ENTRIES, loaded
from gateway.settings import load_settings
from gateway.settings.reference import rows

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
WORDS_MAX = 940
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
COMMAND = re.compile(
    r"^\$ (?:[A-Z_]+=\S+ )*(?:docker compose run --rm admin|harmony-gateway) ([a-z][^>\n]*)",
    re.MULTILINE,
)
SETTING = re.compile(r"^\| `([A-Z_]+)` \| (?:`(.*?)` )?\|", re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= WORDS_MAX


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"^\| \[[a-z-]+\]\(([a-z-]+\.md)\)", contents, re.MULTILINE))


def test_every_link_of_a_page_leads_somewhere() -> None:
    broken = [
        f"{page.name}: {link}"
        for page in DOCS.glob("*.md")
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not (DOCS / link).exists()
    ]
    assert broken == []


@pytest.mark.slow
def test_the_commands_of_the_pages_exist() -> None:
    named = {
        " ".join(words)
        for page in DOCS.glob("*.md")
        for words in re.findall(
            r"\bharmony-gateway (config|db|keys|tenants|launch) ([a-z]+)", page.read_text("utf-8")
        )
    }
    known = {f"{name} {one}" for name in ENTRIES for one in getattr(loaded(name), "commands", ())}
    assert named - known == set()


@pytest.mark.slow
def test_the_commands_of_the_pages_take_their_arguments() -> None:
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    lines = [line for page in pages for line in COMMAND.findall(page.read_text(encoding="utf-8"))]
    for line in lines:
        words = shlex.split(line, comments=True)
        command: Any = loaded(words.pop(0))
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(line, words)
    assert len(lines) > 20


def test_the_settings_in_the_readme_exist_with_these_defaults() -> None:
    defaults = {row.name: row.default for row in rows()} | {"DATABASE_URL": ""}
    named = SETTING.findall(README)
    assert len(named) >= 10
    assert dict(named) == {name: defaults.get(name, "no such setting") for name, _ in named}


def test_the_configuration_in_the_readme_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    file = tmp_path / "gateway.yaml"
    file.write_text(block, encoding="utf-8")
    settings = load_settings(file, environ={})
    assert [backend.name for backend in settings.backends] == ["gpu-1", "gpu-2"]


def test_the_files_that_the_readme_names_exist() -> None:
    linked = re.findall(r"\]\((?!http)([^)]+)\)", README)
    mentioned = re.findall(r"`((?:gateway|deploy)/[a-z_/.]+\.[a-z]+)`", README)
    assert [path for path in linked + mentioned if not (ROOT / path).exists()] == []


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^\$ make ([a-z0-9-]+)", README, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets <= set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))


@pytest.mark.slow
def test_nothing_says_to_install_the_package_from_an_index() -> None:
    """No index has it: an extra is installed from a checkout."""
    files = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "gateway").rglob("*.py")]
    wanted = re.compile(r"install\b.*[ '\"]harmony-gateway(\[|'|\b(?!-))")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"harmony-gateway\[", line) or wanted.search(line)
    ]
    assert found == []


def test_the_changelog_has_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d[^]]*)\]", changelog, re.MULTILINE)[0] == __version__


LOCKS = (
    "requirements.lock",
    "requirements-build.lock",
    "requirements-demo.lock",
    "requirements-dev.lock",
    "requirements-uv.lock",
    "tests/chart/requirements.txt",
    "tests/deploy/requirements.txt",
)


@pytest.mark.parametrize("name", LOCKS)
def test_lock_files_have_hashes_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    pinned = [part for part in re.split(r"\n(?=\S)", text) if not part.startswith("#")]
    assert all("==" in part and "--hash=sha256:" in part for part in pinned)


def test_ci_is_a_script_that_bash_can_read() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    commands = re.sub(r"^#.*", "", text, flags=re.MULTILINE)
    steps = re.findall(r"\bmake ([a-z-]+)", commands)
    assert sorted(steps) == [
        "core-coverage-report", "helm", "lint", "newest-sdk", "test", "test-all",
    ]  # fmt: skip
    (covering,) = re.findall(r"^covering=\([^)]*\)", text, re.MULTILINE)
    print_them = f"{covering}; printf '%s\\n' \"${{covering[@]}}\""
    printed = subprocess.run(["bash", "-c", print_them], check=True, capture_output=True, text=True)
    named = printed.stdout.split()
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
