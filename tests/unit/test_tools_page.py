"""What docs/tools.md says of tests and settings is so."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.settings import load_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([ABC]\d+) \|.*\| (.*) \|$", re.MULTILINE)
LINK = re.compile(r"\[([a-z0-9 ]+)\]\(\.\./(tests/[\w/]+\.py)\)")
BEHAVIOURS = {"A": 12, "B": 17, "C": 14}


def test_every_behaviour_has_a_row_and_every_row_a_test_that_is_there() -> None:
    rows = ROW.findall(PAGE)
    expected = [f"{part}{n}" for part, count in BEHAVIOURS.items() for n in range(1, count + 1)]
    assert [name for name, _ in rows] == expected
    for name, shown in rows:
        links = LINK.findall(shown)
        assert links, name
        for title, path in links:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert f"def test_{title.replace(' ', '_')}(" in text, (name, title, path)


def test_the_settings_of_the_page_are_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(tools:.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    file = tmp_path / "gateway.yaml"
    file.write_text(block, encoding="utf-8")
    tools = load_settings(file).tools
    assert tools.web.enabled
    assert tools.python.enabled
    assert tools.mcp.servers == "registry"
