"""Leaves out what CI has run before, with coverage: tests below `--traced` that are not slow.

`python -m pytest -p tests.remaining --traced=tests/unit/protocol` has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TRACED: Final = pytest.StashKey[tuple[str, ...]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--traced", action="append", default=[], help="a folder or module")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TRACED] = tuple(f"{config.rootpath / one}/" for one in config.getoption("traced"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A module that has nothing left is not even imported."""
    is_module = collection_path.name.startswith("test_")
    if is_module and f"{collection_path}/".startswith(config.stash[TRACED]):
        return "slow" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    traced = config.stash[TRACED]
    items[:] = [
        item
        for item in items
        if item.get_closest_marker("slow") or not f"{item.path}/".startswith(traced)
    ]
