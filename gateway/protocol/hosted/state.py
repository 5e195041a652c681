"""State that hosted tools need of earlier responses: it goes along a chain of responses.

It is kept with a response (`responses.tool_state`), as its fold makes it: the pages that the model
was shown, by their cursors, and the container that it used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter, ValidationError

from gateway.protocol.hosted.grants import ShownPage  # noqa: TC001 - its fields are read


@dataclass(frozen=True, slots=True)
class ToolState:
    """State of the tools. `pages` are the last ones that were shown, oldest first;
    `container_id` is the last container.
    """

    pages: tuple[ShownPage, ...] = ()
    container_id: str | None = None

    @property
    def first_cursor(self) -> int:
        # Cursors of earlier answers must not come to mean another page.
        return max((page.cursor + 1 for page in self.pages), default=0)


NO_TOOL_STATE: Final = ToolState()
_STATE: Final = TypeAdapter(ToolState)


def tool_state_of(packed: bytes | None) -> ToolState:
    """Parse stored tool state; empty for None and for unreadable data, so that tools start anew."""
    if not packed:
        return NO_TOOL_STATE
    try:
        return _STATE.validate_json(packed)
    except ValidationError:
        return NO_TOOL_STATE
