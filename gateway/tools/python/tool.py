"""The tool `python`: code that the model writes is run in the container of its response."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from gateway.errors import StoreError
from gateway.store.tools.containers import TooManyContainers
from gateway.telemetry.logs import EventLog
from gateway.tools.contract import ToolResult, ToolSession, ToolStart
from gateway.tools.python.containers import ContainerExpired, ContainersBusy
from gateway.tools.python.engine import EngineBroken
from gateway.tools.python.text import GONE, code_of, plain, shortened, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.entries import ToolOutcome
    from gateway.protocol.grants import PythonGrant
    from gateway.tools.contract import ToolCall, ToolScope
    from gateway.tools.python.containers import ContainerPool, Execution, Image

NAME: Final = "builtin:python"
PRINTED_SHARE: Final = 4
"""So many times what is shown of it is read of what code printed."""

_OFF: Final = "Python is not available here."
_FAILURES: Final[Mapping[type[Exception], tuple[str, ToolOutcome]]] = {
    ContainerExpired: ("The container has expired: its variables and files are gone.", "refused"),
    TooManyContainers: (
        "There are as many containers as there may be, so this code was not run: answer without "
        "it. One of them has to expire or be deleted first.",
        "refused",
    ),
    ContainersBusy: ("Too much code is running at the moment; try again later.", "refused"),
    EngineBroken: (
        f"The container ended while the code ran, or could not be started. {GONE}",
        "tool_error",
    ),
}
_UNUSABLE: Final = (
    ContainerExpired,
    ContainersBusy,
    TooManyContainers,
    EngineBroken,
    StoreError,
)
_UNAVAILABLE: Final[tuple[str, ToolOutcome]] = (
    "Python is not available at the moment.",
    "transport_error",
)

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class PythonLimits:
    """Bounds of one call: its code, its time, what the model is shown of it (in ids), and how much
    of what it printed its item shows.
    """

    timeout_s: float = 60.0
    code_bytes_max: int = 65_536
    result_ids_max: int = 4096
    logs_chars_max: int = 65_536


class PythonTools:
    """`HostedTools` for `builtin:python`."""

    def __init__(self, pool: ContainerPool, limits: PythonLimits) -> None:
        self._pool = pool
        self._limits = limits

    async def check(self) -> str:
        return await self._pool.check()

    async def run(self) -> None:
        await self._pool.run()

    async def close(self) -> None:
        await self._pool.close()

    def session(self, scope: ToolScope) -> PythonSession:
        return PythonSession(self._pool, self._limits, scope)


class PythonSession(ToolSession):
    """Session that runs the calls of one response in its container, which outlives the session."""

    def __init__(self, pool: ContainerPool, limits: PythonLimits, scope: ToolScope) -> None:
        self._pool = pool
        self._limits = limits
        self._scope = scope
        self._files: dict[str, str] = {}
        for state in scope.states:
            if "container_id" in state:
                self._files = dict(state.get("files", {}))

    @override
    def start(self, call: ToolCall) -> ToolStart:
        # Code may change its files and variables.
        grant = self._scope.grants.python
        shown = {} if grant is None else {"container_id": grant.container_id}
        return ToolStart(repeatable=False, shown=shown)

    @override
    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        grant, code = self._scope.grants.python, code_of(call.arguments)
        if grant is None:
            return self._result(code, _OFF, "refused")
        if (refusal := self._refusal(call, code)) is not None:
            return self._result(code, refusal, "refused")
        try:
            execution = await self._pool.execute(
                self._scope.tenant_id,
                grant,
                code.encode("utf-8", "replace").decode(),
                timeout_s=self._limits.timeout_s,
                key=self._key(call),
                project_id=self._scope.project_id,
                on_handle=on_handle,
            )
        except _UNUSABLE as error:
            _log.warning("code was not run to its end", error=error)
            return self._result(code, *_FAILURES.get(type(error), _UNAVAILABLE))
        return self._result_of(grant, code, execution)

    def _refusal(self, call: ToolCall, code: str) -> str | None:
        # None: the code is run.
        if call.name != NAME:
            return _OFF
        bound = self._limits.code_bytes_max
        if len(code.encode("utf-8", "replace")) > bound:
            return f"The code is longer than {bound} bytes; run it in parts."
        return None if code.strip() else "There is no code to run: write some."

    @override
    async def resume(self, call: ToolCall, handle: bytes) -> ToolResult | None:
        grant = self._scope.grants.python
        if grant is None:
            return None
        execution = await self._pool.resume(
            self._scope.tenant_id, grant, handle, timeout_s=self._limits.timeout_s
        )
        if execution is None:
            return None
        return self._result_of(grant, code_of(call.arguments), execution)

    @override
    async def close(self) -> None:
        # The container stays for later responses.
        pass

    def _key(self, call: ToolCall) -> str:
        # The same for all attempts of a call, so that the run is found again.
        return f"{self._scope.response.hex}.{call.ordinal}"

    def _result_of(self, grant: PythonGrant, code: str, execution: Execution) -> ToolResult:
        ran = execution.ran
        # A container may say megabytes more than it should, which would hold up the event loop.
        logs = plain(shortened(ran.output, PRINTED_SHARE * self._limits.logs_chars_max))
        self._files |= execution.files
        outputs: list[dict[str, Any]] = []
        if logs:
            shown = shortened(logs, self._limits.logs_chars_max)
            outputs.append({"type": "logs", "logs": shown})
        outputs.extend(
            {"type": "image", "url": _url(image, grant.container_id)} for image in execution.images
        )
        outcome: ToolOutcome = "ok" if ran.status in {"ok", "error"} else "timeout"
        if execution.is_lost:
            # A call that is told as completed has its files.
            outcome = "tool_error"
        text = told(execution, logs, timeout_s=self._limits.timeout_s)
        state = {"container_id": grant.container_id, "files": self._files}
        return self._result(code, text, outcome, outputs, state)

    def _result(
        self,
        code: str,
        text: str,
        outcome: ToolOutcome,
        outputs: list[dict[str, Any]] | None = None,
        state: dict[str, Any] | None = None,
    ) -> ToolResult:
        grant = self._scope.grants.python
        shown: dict[str, Any] = {"code": code, "outputs": outputs or []}
        if grant is not None:
            shown["container_id"] = grant.container_id
        return ToolResult(
            text, outcome, shown=shown, state=state or {}, ids_max=self._limits.result_ids_max
        )


def _url(image: Image, container_id: str) -> str:
    # A data URL, or a file of the container.
    if image.file_id is not None:
        return f"/v1/containers/{container_id}/files/{image.file_id}/content"
    return f"data:{image.media_type};base64,{base64.b64encode(image.content).decode()}"
