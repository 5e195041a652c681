"""Tools that cannot be read are left out of a server's listing, so that they do not cost the rest.

The SDK reads a page of tools as a whole: one that is not as the protocol wants it, such as an input
schema without `"type": "object"`, is an error of all of them. So of a page that it would refuse it
is asked of each tool alone, before it sees the page. Where no tool is left the page stays as it
was, for the SDK to refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from gateway.protocol.tool_types import FUNCTION_NAME
from gateway.telemetry.logs import EventLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_LIST: Final = "tools/list"
_PATH_PARTS: Final = 2
"""Of what is told of a mistake: deeper ones may be names that the server chose."""
_log = EventLog(__name__)


class ToolCheck:
    """Check of the tools that arrive on one connection. `version` is that of the protocol which
    both sides speak, once they do.
    """

    def __init__(self) -> None:
        self.version: str | None = None

    def passed(self, message: Any) -> Any:
        """Return a message as the SDK is to see it; only answers that list tools are changed."""
        result = getattr(getattr(message, "message", None), "result", None)
        # The result of a call may have anything in it, but always has its content.
        if self.version is not None and isinstance(result, dict) and "content" not in result:
            tools = result.get("tools")
            if isinstance(tools, list) and self._fault(result) is not None:
                self._leave_out(result, tools)
        return message

    def _leave_out(self, page: dict[str, Any], tools: list[Any]) -> None:
        faults = [self._fault({**page, "tools": [tool]}) for tool in tools]
        kept = [tool for tool, fault in zip(tools, faults, strict=True) if fault is None]
        if not kept:
            return
        page["tools"] = kept
        bad, fault = next(pair for pair in zip(tools, faults, strict=True) if pair[1] is not None)
        _log.warning(
            "tools of an MCP server cannot be read and are left out",
            count=len(tools) - len(kept),
            reason=f"{_name(bad)}: {fault}",
        )

    def _fault(self, page: Mapping[str, Any]) -> str | None:
        # Where and why the SDK would reject a page; None: it would not.
        from mcp.types.methods import parse_server_result

        assert self.version is not None
        try:
            parse_server_result(_LIST, self.version, page)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            path = [part for part in first["loc"] if isinstance(part, str) and part != "tools"]
            return f"{'.'.join(path[:_PATH_PARTS])} {first['type']}"
        return None


def _name(tool: Any) -> str:
    # For logs, so only a valid name.
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) and FUNCTION_NAME.fullmatch(name) else "a tool"


class CheckedStream:
    """A transport's stream of messages, each of which has `passed` a check."""

    def __init__(self, stream: Any, check: ToolCheck) -> None:
        self._stream = stream
        self._check = check

    @property
    def last_context(self) -> Any:
        # The SDK continues in the context in which the last message was sent.
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return self._check.passed(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> CheckedStream:
        return self

    async def __anext__(self) -> Any:
        return self._check.passed(await anext(self._stream))

    async def __aenter__(self) -> CheckedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        ended: bool | None = await self._stream.__aexit__(kind, error, traceback)
        return ended
