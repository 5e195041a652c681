from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from gateway.errors import ResourceNotFound, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

    Routes = Iterable[BaseRoute]

BASE: Final = "/v1"
_ADMIN: Final = f"{BASE}/organization/"
COMPARED_CHARS_MAX: Final = 256
ALIKE_MIN: Final = 0.8
"""Similarity (`difflib`) from which on a path is suggested."""
_HIDDEN: Final = "…"
_OWN_ID: Final = re.compile(r"[a-z]{2,10}[_-][0-9a-f]{32,}[g-i]?")
_TWICE: Final = re.compile(rf"(?:{BASE}){{2,}}(?=/|$)")


class WebSocketElsewhere:
    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ResourceNotFound(
            f"Invalid URL (WebSocket {shown(scope['path'])}). WebSocket mode is at /v1/responses."
        )


def path_of(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def loggable_path(path: str, routes: Routes) -> str:
    """Replace parts that a client may have written content into; words of routes and ids made here
    are kept.
    """
    words = {word for route in routes if isinstance(route, Route) for word in route.path.split("/")}
    return "/".join(
        part if part in words or _OWN_ID.fullmatch(part) else _HIDDEN for part in path.split("/")
    )


def is_served(path: str, routes: Routes) -> bool:
    return any(route.path_regex.match(path) for route in routes if isinstance(route, Route))


def unknown_url(place: str, path: str, routes: Routes) -> str:
    """Return the message of a 404; `place` shows method and path."""
    meant = _suggest(path, routes)
    if meant is not None:
        return f"Invalid URL ({place}). {meant}"
    served = dict.fromkeys(
        route.path
        for route in routes
        if isinstance(route, Route)
        and route.path.startswith(f"{BASE}/")
        and "{" not in route.path
        and not route.path.startswith(_ADMIN)
    )
    return (
        f"Invalid URL ({place}): it is not served here. Served are {', '.join(served)} and what is "
        "below them; GET /openapi.json describes them."
    )


def _suggest(path: str, routes: Routes) -> str | None:
    once = _TWICE.sub(BASE, path)
    if once != path:
        return f"It has {BASE} twice: the client adds it to a base URL that ends in it already."
    bare = path.rstrip("/")
    if bare != path and is_served(bare, routes):
        return "Leave out the slash at its end."
    if is_served(f"{BASE}{path}", routes):
        return f"It lacks {BASE}: the base URL that clients are given ends in it."
    nearest = _nearest(path, routes)
    return None if nearest is None else f"Did you mean {nearest}?"


def _nearest(path: str, routes: Routes) -> str | None:
    parts = path.split("/")
    if not path.startswith(f"{BASE}/") or len(path) > COMPARED_CHARS_MAX:
        return None
    likeness: dict[str, float] = {}
    for route in routes:
        names = route.path.split("/") if isinstance(route, Route) else []
        is_near = len(names) == len(parts) and names[:2] == parts[:2]
        if is_near and ":path}" not in names[-1]:
            # Only the route's words behind the common beginning: ids would make any two alike.
            pairs = [pair for pair in zip(names, parts, strict=True) if "{" not in pair[0]]
            words, own = map("/".join, zip(*pairs[2:], strict=True))
            matcher = SequenceMatcher(None, own, words)
            if matcher.real_quick_ratio() >= ALIKE_MIN:
                likeness["/".join(names)] = matcher.ratio()
    nearest = max(likeness, key=likeness.__getitem__, default=None)
    return nearest if nearest is not None and likeness[nearest] >= ALIKE_MIN else None
