"""Parse the arguments of a call, which a model wrote, into the object that the gateway sends to a
server; or say what is wrong with them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.constraints.output_rules import UnusableSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.protocol.grants import McpTool

DEPTH_MAX: Final = 32
CHECK_WORK_MAX: Final = 50_000
"""Applications of a schema to a value in one check."""
_INLINE_BYTES_MAX: Final = 8 * 1024
"""What is longer, schema and arguments together, is checked in a thread."""


class BadArguments(ValueError):
    """Arguments that the tool does not accept. The message tells the model what is wrong, and
    where.
    """


async def checked(tool: McpTool, written: str, *, bytes_max: int) -> dict[str, Any]:
    """Parse the arguments, and validate them against the tool's schema.

    An empty text stands for no arguments. Raises `BadArguments`.
    """
    content = written.encode("utf-8", "surrogatepass")
    if len(content) > bytes_max:
        raise BadArguments(f"they have {len(content)} bytes; {bytes_max} are the most")
    if not written.strip():
        content = b"{}"
    if len(content) + len(str(tool.parameters)) > _INLINE_BYTES_MAX:
        fault = await asyncio.to_thread(_fault, tool.parameters, content)
    else:
        fault = _fault(tool.parameters, content)
    if fault is not None:
        raise BadArguments(fault)
    given: dict[str, Any] = orjson.loads(content)
    return given


def _fault(schema: Mapping[str, Any], content: bytes) -> str | None:
    try:
        value = orjson.loads(content)
    except ValueError as error:
        return f"they are not JSON ({str(error).partition(chr(10))[0]})"
    if not isinstance(value, dict):
        return "they are not a JSON object"
    if _is_deeper(value, DEPTH_MAX):
        return f"they are nested deeper than {DEPTH_MAX} levels"
    # Libraries that nothing may have needed before.
    from gateway.constraints.validators import SchemaValidator

    try:
        validator = SchemaValidator(dict(schema), work_max=CHECK_WORK_MAX)
    except UnusableSchema:
        return None  # the server knows better what it takes
    fault = validator.fault(content.decode())
    return None if fault is None else f"they do not match its schema: {fault}"


def _is_deeper(value: object, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if depth == 0:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(_is_deeper(one, depth - 1) for one in inner)
