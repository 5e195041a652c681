from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson
from typing_extensions import override

from gateway.errors import StoreError
from gateway.protocol.grants import CITED_FILES_MAX
from gateway.store.tools.containers import TooManyContainers
from gateway.telemetry.logs import EventLog
from gateway.tools.python.container_engine import EngineBroken
from gateway.tools.python.container_pool import ContainerExpired, ContainersBusy
from gateway.tools.result_text import without_unseen
from gateway.tools.tool_contract import ToolResult, ToolSession, ToolStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.entries import ToolOutcome
    from gateway.protocol.grants import PythonGrant
    from gateway.tools.python.container_engine import ContainerCapabilities
    from gateway.tools.python.container_pool import ContainerPool, Execution, Image
    from gateway.tools.tool_contract import ToolCall, ToolScope


_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""ECMA-48, sections 5.4 and 5.6."""

SILENT: Final = "(The code printed nothing. Use print() to see a value.)"
RESTARTED: Final = (
    "(The container was started anew: variables and imports of earlier calls are gone. Files in "
    "/mnt/data are still there.)"
)
GONE: Final = "All variables and imports are gone; files that earlier calls wrote are still there."


def plain(text: str) -> str:
    """Remove colours, overwritten text, and invisible characters."""
    lines = _ANSI.sub("", text).split("\n")
    # Text that a progress bar has overwritten is removed.
    shown = (line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line for line in lines)
    return without_unseen("\n".join(shown))


def code_of(arguments: str) -> str:
    """Return the code: models write it raw, or as JSON with the key `code`."""
    if arguments.lstrip().startswith("{"):
        try:
            wrapped = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return arguments
        if isinstance(wrapped, dict) and isinstance(code := wrapped.get("code"), str):
            return code
    return arguments


def description(
    capabilities: ContainerCapabilities, files: Sequence[str], *, timeout_s: float
) -> str | None:
    """Describe the tool; None: the text that the model was trained with is accurate."""
    expected = {"numpy", "pandas"} <= set(capabilities.packages)
    if capabilities.is_whole and expected and not files:
        return None
    packages = ", ".join(capabilities.packages) or "none"
    parts = [
        "Runs Python code for your own reasoning and computing; the user does not see the code. It "
        "is a notebook with state: names that one call defines are there in the next. The answer "
        "is what the code prints, the value of its last expression and any traceback, or a timeout "
        f"after {timeout_s:g} seconds. Files in /mnt/data are kept. There is no internet access, "
        f"and nothing can be installed. Packages beside the standard library: {packages}."
    ]
    if capabilities.missing:
        parts.append(capabilities.missing)
    if files:
        listed = ", ".join(map(plain, files))
        parts.append(f"The user has put these files into /mnt/data: {listed}.")
    return "\n\n".join(parts)


def shortened(text: str, chars_max: int) -> str:
    if len(text) <= chars_max:
        return text
    head = text[: chars_max * 6 // 10]
    tail = text[len(text) - chars_max * 4 // 10 :]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left_out} characters left out …]\n{tail}"


def described_run(execution: Execution, logs: str, *, timeout_s: float) -> str:
    ran = execution.ran
    parts = [RESTARTED] if execution.is_restarted else []
    if logs.strip():
        parts.append(logs.rstrip("\n"))
    if ran.dropped:
        parts.append(f"(The output was longer: {ran.dropped} more bytes were dropped.)")
    parts += [f"(An image was shown to the user: {image.path})" for image in execution.images]
    parts += [f"({note})" for note in execution.notes]
    match ran.status:
        case "interrupted":
            parts.append(
                f"(The code was interrupted after {timeout_s:g} seconds. Variables are kept.)"
            )
        case "killed":
            parts.append(
                f"(The code did not end within {timeout_s:g} seconds, and its container was "
                f"ended. {GONE})"
            )
        case "ok" | "error":
            if not parts:
                parts.append(SILENT)
    return "\n".join(parts)


NAME: Final = "builtin:python"
PRINTED_SHARE: Final = 4
"""So many times more output is read than shown."""

_OFF: Final = "Python is not available here."
_FAILURES: Final[Mapping[type[Exception], tuple[str, ToolOutcome]]] = {
    ContainerExpired: ("The container expired or was deleted, with all in it.", "refused"),
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
_UNUSABLE: Final[tuple[type[Exception], ...]] = (*_FAILURES, StoreError)
_UNAVAILABLE: Final[tuple[str, ToolOutcome]] = (
    "Python is not available at the moment.",
    "transport_error",
)

_log = EventLog(__name__)


class PythonSession(ToolSession):
    def __init__(self, pool: ContainerPool, scope: ToolScope) -> None:
        self._pool = pool
        self._limits = pool.policy
        self._scope = scope
        self._files: dict[str, str] = {}
        self._used = ""
        """Container of the last code that ran: deleted since, it is not made again."""
        for state in scope.states:
            if "container_id" in state:
                self._files, self._used = dict(state.get("files", {})), state["container_id"]

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
        if grant.container_id == self._used:
            grant = replace(grant, containers_max=None)
        try:
            execution = await self._pool.execute(
                self._scope.tenant_id,
                grant,
                code.encode("utf-8", "replace").decode(),
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
        grant = replace(grant, containers_max=None)
        execution = await self._pool.resume(self._scope.tenant_id, grant, handle)
        if execution is None:
            return None
        return self._result_of(grant, code_of(call.arguments), execution)

    def _key(self, call: ToolCall) -> str:
        # All attempts of a call share the key, so that a later one finds the run.
        return f"{self._scope.response.hex}.{call.ordinal}"

    def _result_of(self, grant: PythonGrant, code: str, execution: Execution) -> ToolResult:
        ran = execution.ran
        # A container may say megabytes more than it should, which would hold up the event loop.
        logs = plain(shortened(ran.output, PRINTED_SHARE * self._limits.logs_chars_max))
        # Each call's state has them again, and code may delete files and write others.
        written = [*(self._files | execution.files).items()]
        self._files, self._used = dict(written[-CITED_FILES_MAX:]), grant.container_id
        outputs: list[dict[str, Any]] = []
        if logs:
            shown = shortened(logs, self._limits.logs_chars_max)
            outputs.append({"type": "logs", "logs": shown})
        outputs.extend(
            {"type": "image", "url": _url(image, grant.container_id)} for image in execution.images
        )
        outcome: ToolOutcome = "ok" if ran.status in {"ok", "error"} else "timeout"
        if execution.is_lost:
            # A call that is reported as completed has its files.
            outcome = "tool_error"
        text = described_run(execution, logs, timeout_s=self._limits.timeout_s)
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
