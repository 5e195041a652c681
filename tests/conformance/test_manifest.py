"""The manifest, the tests and the page name the same requirements."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.conformance.document import PAGE, SECTIONS, page, section_of
from tests.conformance.proofs import proofs
from tests.conformance.requirements.manifest import REQUIREMENTS

NUMBERED = {"6.1": 12, "7.4": 2, "9": 6}
"""Sections whose rules are numbered from (1) to this."""
CASES = 30


@pytest.mark.slow
def test_every_requirement_is_proven() -> None:
    shown = proofs()
    unproven = [one.id for one in REQUIREMENTS if not any(proof.proves(one.id) for proof in shown)]
    assert unproven == []


@pytest.mark.slow
def test_every_proof_is_of_a_requirement() -> None:
    known = [one.id for one in REQUIREMENTS]
    strange = [
        (proof.pattern, proof.path) for proof in proofs() if not any(map(proof.proves, known))
    ]
    assert strange == []


def test_no_id_stands_for_two_requirements() -> None:
    counts = Counter(requirement.id for requirement in REQUIREMENTS)
    assert set(counts.values()) == {1}


def test_every_requirement_says_where_it_comes_from_and_what_it_is() -> None:
    for requirement in REQUIREMENTS:
        assert re.fullmatch(r"responses-api \d(\.\d+)? \S.*", requirement.source), requirement
        assert requirement.sentence.endswith("."), requirement
        assert re.fullmatch(r"[a-z-]+(\.[a-z0-9-]+)+", requirement.id), requirement


def test_every_section_has_its_requirements() -> None:
    assert {section_of(requirement) for requirement in REQUIREMENTS} == set(SECTIONS)


def test_every_numbered_rule_and_every_case_is_there() -> None:
    sources = {requirement.source for requirement in REQUIREMENTS}
    for section, last in NUMBERED.items():
        numbered = {f"responses-api {section} ({number})" for number in range(1, last + 1)}
        assert numbered <= sources
    assert {f"responses-api 7.2 case {number}" for number in range(CASES)} <= sources


@pytest.mark.slow
def test_the_page_is_what_the_manifest_and_the_marks_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python -m tests.conformance.document"
