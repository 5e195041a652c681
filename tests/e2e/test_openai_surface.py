"""Every method of openai-python for what is served is called by a test, of both its clients."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from openai import AsyncOpenAI, OpenAI
from openai._resource import AsyncAPIResource, SyncAPIResource

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVED = ("responses", "conversations", "models")
HERE = Path(__file__).parent


def _methods(resource: SyncAPIResource | AsyncAPIResource, path: str) -> Iterator[str]:
    """`responses.create`, `responses.input_items.list` and so on."""
    for name in dir(type(resource)):
        if name.startswith(("_", "with_")):
            continue
        member = getattr(resource, name)
        if isinstance(member, (SyncAPIResource, AsyncAPIResource)):
            yield from _methods(member, f"{path}.{name}")
        elif callable(member):
            yield f"{path}.{name}"


def _calls(fixture: str) -> set[str]:
    """What the tests call on this fixture."""
    return {
        name.removeprefix(f"{fixture}.")
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        for name in [ast.unparse(node.func)]
        if name.startswith(f"{fixture}.")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opened", "fixture"),
    [(OpenAI(api_key="unused"), "client"), (AsyncOpenAI(api_key="unused"), "async_client")],
)
def test_every_method_is_called_by_a_test(opened: OpenAI | AsyncOpenAI, fixture: str) -> None:
    known = {method for name in SERVED for method in _methods(getattr(opened, name), name)}
    assert {"responses.create", "conversations.items.delete", "models.retrieve"} <= known
    assert known - _calls(fixture) == set()
