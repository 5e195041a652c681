"""`make dashboards`: write the boards for Grafana anew."""

from __future__ import annotations

from scripts.dashboards.boards import BOARDS
from scripts.dashboards.panels import FOLDER, encoded

for board in BOARDS:
    (FOLDER / f"{board.name.lower()}.json").write_text(encoded(board), encoding="utf-8")
