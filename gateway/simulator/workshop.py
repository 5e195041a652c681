"""MCP server for the demo. It needs the extra `mcp`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PATH: Final = "/mcp"
NOTES_MAX: Final = 100
NOTE_CHARS_MAX: Final = 1000
METRES: Final = {"mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0, "in": 0.0254, "ft": 0.3048,
                 "yd": 0.9144, "mi": 1609.344, "nmi": 1852.0}  # fmt: skip
"""Exact, by international definition."""


def create_workshop() -> ASGIApp:
    server = MCPServer("workshop", log_level="CRITICAL")
    notes: list[str] = []

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    def convert(value: float, unit: str, into: str) -> str:
        """Convert a length. Units: mm, cm, m, km, in, ft, yd, mi, nmi."""
        for name in (unit, into):
            if name not in METRES:
                raise ToolError(f"There is no unit {name}; the units are {', '.join(METRES)}.")
        return f"{value:g} {unit} = {value * METRES[unit] / METRES[into]:.10g} {into}"

    @server.tool(structured_output=False)
    def note(text: str) -> str:
        """Keep a note until the demo ends; tells how many there are."""
        if len(text) > NOTE_CHARS_MAX:
            raise ToolError(f"A note has at most {NOTE_CHARS_MAX} characters.")
        notes.append(text)
        del notes[:-NOTES_MAX]
        return f"{len(notes)} notes are kept."

    return server.streamable_http_app(streamable_http_path=PATH)
