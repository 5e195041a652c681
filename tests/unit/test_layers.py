"""The contracts in pyproject.toml: who may import whom, and one door per dependency."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from importlinter.cli import lint_imports

if TYPE_CHECKING:
    import pytest

CONFIGURATION = Path(__file__).parents[2] / "pyproject.toml"


def test_the_layers_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    broken = lint_imports(config_filename=str(CONFIGURATION), no_cache=True, no_logo=True)
    assert not broken, capsys.readouterr().out
