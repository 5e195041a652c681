"""Templates and files: what they must not have, and that what is not ours is what was taken."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from gateway.console import BASE
from gateway.console.application import _HEADERS, FORM_TOKEN, FRAGMENT
from gateway.console.pages import PAGES
from gateway.console.rendering import FOLDER, Templates, visible
from gateway.console.rendering import STATIC_FOLDER as STATIC

TEMPLATES = sorted(path.name for path in FOLDER.glob("*.html"))
LINES_MAX = 6_000
FORBIDDEN = {
    "a filter that escapes nothing": r"\|\s*safe\b|autoescape|Markup",
    "script in an attribute": r"\son[a-z]+\s*=|hx-on|\bjs:|javascript:",
    "style in an attribute": r"\sstyle\s*=",
    "inline script or style": r"<script(?![^>]*\ssrc=)|<style",
    "an address elsewhere": r"(?:src|href|action)=\"(?:https?:)?//",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_nothing_that_runs(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    for what, pattern in FORBIDDEN.items():
        assert not re.search(pattern, text, re.IGNORECASE), what


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_form_that_changes_something_has_the_token(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", text, re.DOTALL):
        assert "token" in form, form


def test_all_templates_can_be_read_and_pages_have_their_fragments() -> None:
    templates = Templates(
        base=BASE, static=str, fragment_header=FRAGMENT, form_field=FORM_TOKEN
    )._environment
    for name in TEMPLATES:
        templates.get_template(name)
    for page in PAGES:
        if page.template:
            assert page.fragments <= templates.get_template(page.template).blocks.keys(), page.path


def test_the_console_stays_small() -> None:
    folder = FOLDER.parent
    files = [*folder.rglob("*.py"), *folder.rglob("*.html")]
    assert sum(path.read_text("utf-8").count("\n") for path in files) <= LINES_MAX


def test_vendored_files_are_those_of_their_release() -> None:
    vendor = STATIC / "vendor"
    sums = dict(line.split()[::-1] for line in (vendor / "SHA256SUMS").read_text().splitlines())
    there = {path.name for path in vendor.iterdir() if path.suffix in {".js", ".css"}}
    assert sums.keys() == there
    for name, digest in sums.items():
        assert sha256((vendor / name).read_bytes()).hexdigest() == digest, name
    licences = (vendor / "LICENSES.txt").read_text("utf-8")
    assert all(name in licences for name in there)


def test_nothing_inline_is_allowed() -> None:
    assert "unsafe" not in _HEADERS["content-security-policy"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 漢字\n", "plain äöü 漢字\n"),
        ("user\u202egnp.exe", "user⟨U+202E⟩gnp.exe"),
        ("a\u200bb\u2066c\ufeff", "a⟨U+200B⟩b⟨U+2066⟩c⟨U+FEFF⟩"),
        ("\x1b[31m\0", "⟨U+001B⟩[31m⟨U+0000⟩"),
        ("\U000e0041\ud800", "⟨U+E0041⟩⟨U+D800⟩"),
        (7, 7),
    ],
)
def test_characters_that_hide_text_are_shown_by_their_numbers(text: object, shown: object) -> None:
    assert visible(text) == shown
