"""Render the output of code for models and clients. No I/O here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

from gateway.tools.unseen import without_unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.tools.python.containers import Execution
    from gateway.tools.python.engine import ContainerCapabilities

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""Source: ECMA-48, sections 5.4 and 5.6: control sequences, and commands to the terminal."""

SILENT: Final = "(The code printed nothing. Use print() to see a value.)"
RESTARTED: Final = (
    "(The container was started anew: variables and imports of earlier calls are gone. Files in "
    "/mnt/data are still there.)"
)
GONE: Final = "All variables and imports are gone; files that earlier calls wrote are still there."


def plain(text: str) -> str:
    """Remove colours, overwritten text, and invisible or direction-changing characters."""
    lines = _ANSI.sub("", text).split("\n")
    # What a progress bar wrote over is not there any more.
    shown = (line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line for line in lines)
    return without_unseen("\n".join(shown))


def code_of(arguments: str) -> str:
    """Return the code of a call: models write it raw, or as JSON with the one key `code`."""
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
    """Describe the tool for the model; None: the text that it was trained with is accurate.

    `files` names those that the request put into `/mnt/data`.
    """
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
    """Keep beginning and end of a text that is too long, cut at line ends if there are any."""
    if len(text) <= chars_max:
        return text
    head = text[: chars_max * 6 // 10]
    tail = text[len(text) - chars_max * 4 // 10 :]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left_out} characters left out …]\n{tail}"


def told(execution: Execution, logs: str, *, timeout_s: float) -> str:
    """Format a run for the model; `logs` is its cleaned output."""
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
