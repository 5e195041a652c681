"""Scopes of project keys: the words that OpenAI has, and what each of them lets a key do.

A key without scopes may do all. What a request takes is a `Need`, told by its route and method
(`api.scopes` has the table); a key has it that has one of the scopes that give it.
"""

from __future__ import annotations

from typing import Final, Literal

Need = Literal[
    "responses.write",
    "responses.read",
    "conversations.write",
    "conversations.read",
    "containers.write",
    "containers.read",
    "files.write",
    "files.read",
    "models.request",
    "models.read",
    "key.read",
]
NEEDS: Final[tuple[Need, ...]] = (
    *("responses.write", "responses.read", "conversations.write", "conversations.read"),
    *("containers.write", "containers.read", "files.write", "files.read"),
    *("models.request", "models.read", "key.read"),
)
_ALL: Final = frozenset(NEEDS)
_READING: Final = frozenset(one for one in NEEDS if one.endswith(".read"))
_ALWAYS: Final = frozenset[Need]({"key.read"})
"""Needs that every key has: to read about itself."""

SCOPES: Final[dict[str, frozenset[Need]]] = {
    "api.all": _ALL,
    "api.all.read": _READING,
    # To have models generate, in whatever way: what is stored of it is not read by that.
    "api.model.request": frozenset[Need]({"models.request", "responses.write", "models.read"}),
    "api.model.read": frozenset[Need]({"models.read"}),
    "models.read": frozenset[Need]({"models.read"}),
    "models.request": frozenset[Need]({"models.request"}),
    "responses.write": frozenset[Need]({"responses.write", "responses.read"}),
    "responses.read": frozenset[Need]({"responses.read"}),
    "conversations.write": frozenset[Need]({"conversations.write", "conversations.read"}),
    "conversations.read": frozenset[Need]({"conversations.read"}),
    "containers.write": frozenset[Need]({"containers.write", "containers.read"}),
    "containers.read": frozenset[Need]({"containers.read"}),
    "files.write": frozenset[Need]({"files.write", "files.read"}),
    "files.read": frozenset[Need]({"files.read"}),
}
"""Needs that each scope gives."""


def may(scopes: frozenset[str], need: Need) -> bool:
    """Return True if a key with these scopes may do this. Unknown scopes allow nothing."""
    if not scopes or need in _ALWAYS:
        return True
    return any(need in SCOPES.get(scope, ()) for scope in scopes)
