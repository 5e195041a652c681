from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from gateway.cli import terminal
from gateway.errors import StartupError, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from gateway.errors import GatewayError
    from gateway.models.format import Formats
    from gateway.settings import Settings

    Check = Callable[["Subject"], AsyncIterator["Finding"]]
    """An error of this package that it raises ends `doctor`."""


_MARKS: Final = {"ok": terminal.OK, "warning": terminal.WARNING, "error": terminal.BAD}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check; `remedy` is empty where nothing is wrong."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""

    @property
    def level(self) -> Literal["ok", "warning", "error"]:
        # A warning is about what works now, and may not tomorrow.
        if not self.ok:
            return "error"
        return "warning" if self.remedy else "ok"

    @property
    def json(self) -> dict[str, str | bool]:
        return {**asdict(self), "level": self.level}


@dataclass(slots=True)
class Subject:
    """Object of the checks.

    `through` is the proxy's URL, `api_key` a key for it, `replicas` how many there will be. A check
    sets `formats`.
    """

    settings: Settings
    through: str | None = None
    api_key: str | None = None
    replicas: int | None = None
    formats: Formats | None = None


def failed(name: str, error: GatewayError) -> Finding:
    if isinstance(error, StartupError):
        remedy = error.remedy
    elif isinstance(error, StoreError):
        remedy = terminal.remedy_for(error)
    else:
        remedy = "Is the server running, and are its url and api_key right?"
    return Finding(name, ok=False, detail="; ".join(str(error).splitlines()), remedy=remedy)


def show(findings: Iterable[Finding]) -> None:
    for finding in findings:
        terminal.step(_MARKS[finding.level], finding.name, finding.detail)
        for line in finding.remedy.splitlines():
            terminal.show(f"      {line.strip()}")
