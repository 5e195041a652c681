"""docs/parsers.md has a row for each rule of the parsers, and for each reason of the test."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.models.chat.call_syntax import Rule
from tests.differential.turns import IN_DECODED

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "parsers.md").read_text(encoding="utf-8")
ROWS = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))


def test_every_rule_has_a_row() -> None:
    assert {rule.value for rule in Rule} <= ROWS


def test_every_row_is_a_rule_or_a_reason_of_the_test() -> None:
    test = (ROOT / "tests" / "differential" / "turns.py").read_text("utf-8")
    reasons = set(re.findall(r'(?:yield|reasons\.add\()\s*"(\w+)"', test))
    assert {rule.value for rule in Rule} | reasons | IN_DECODED.keys() == ROWS
