"""The short way leads where the router does, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.api.routes import ShortWay

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    Taken = list[str]


class Place:
    """An application that notes when it is asked."""

    def __init__(self, name: str, taken: Taken) -> None:
        self._name = name
        self._taken = taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._taken.append(self._name)


async def nothing() -> dict[str, object]:
    return {}


async def nowhere(_: object) -> None:
    return


@pytest.mark.parametrize(
    ("scope", "wanted"),
    [
        ({"type": "http", "method": "POST", "path": "/a"}, "short"),
        ({"type": "http", "method": "POST", "path": "/a", "root_path": ""}, "short"),
        ({"type": "http", "method": "GET", "path": "/a"}, "router"),
        ({"type": "http", "method": "POST", "path": "/a/"}, "router"),
        ({"type": "http", "method": "POST", "path": "/a", "root_path": "/below"}, "router"),
        ({"type": "websocket", "path": "/a"}, "router"),
        ({"type": "lifespan"}, "router"),
    ],
)
async def test_only_a_plain_post_to_a_known_path_goes_the_short_way(
    scope: Scope, wanted: str
) -> None:
    taken: Taken = []
    way = ShortWay(Place("router", taken), {"/a": Place("short", taken)})
    await way(scope, nothing, nowhere)
    assert taken == [wanted]
