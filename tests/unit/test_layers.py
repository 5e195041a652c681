"""The contracts in pyproject.toml are kept."""

from __future__ import annotations

import re
from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_the_layers_are_kept(capsys, monkeypatch) -> None:
    pass
