"""The settings that docs/tools.md shows are valid."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.settings import load_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")


def test_the_settings_of_the_page_are_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(tools:.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    file = tmp_path / "gateway.yaml"
    file.write_text(block, encoding="utf-8")
    tools = load_settings(file).tools
    assert tools.web.enabled
    assert tools.python.enabled
    assert tools.mcp.servers == "registry"
