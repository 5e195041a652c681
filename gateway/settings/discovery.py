"""The settings of discovery: where backends are found that come and go without a restart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from gateway.settings.sections import Backend, BearerKey, Name, Section

if TYPE_CHECKING:
    from typing import Self

PORT_MAX: Final = 65_535
_NEEDED: Final = {
    "file": ("path",),
    "dns": ("host",),
    "srv": ("host",),
}


def _named_server(server: str) -> str:
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ValueError("expected an address with a port, such as 10.96.0.10:53")
    return server


class Discovery(Section):
    """A source of backends. All that it finds are treated alike, but those of a file."""

    name: Name = Field(description="Its name in logs, metrics and health checks.")
    kind: Literal["file", "dns", "srv"] = Field(
        description="file: a list of backends in a file that is watched; dns: the addresses of a "
        "host, such as a headless service; srv: its SRV records.",
    )
    path: Path | None = Field(None, description="file: `backends`, as in gateway.yaml.")
    host: Name | None = Field(None, description="dns, srv: the name to look up.")
    servers: tuple[Annotated[str, AfterValidator(_named_server)], ...] = Field(
        (), description="dns, srv: addresses and ports of name servers; default: the system's."
    )
    port: int | None = Field(
        None, ge=1, le=65535, description="dns: the port of all backends (default 8000)."
    )
    scheme: Literal["http", "https"] = Field(
        "http", description="How they are spoken to; https by address needs certificates for it."
    )
    api_key: BearerKey | None = Field(None, description="Sent to all of them as a bearer token.")
    models: tuple[Name, ...] = Field((), description="Names they serve; empty: what they list.")
    grammars: Literal["auto", "off"] = Field("auto", description="As of one of `backends`.")
    priorities: bool = Field(default=False, description="As of one of `backends`.")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        for name in _NEEDED[self.kind]:
            if getattr(self, name) is None:
                raise ValueError(f"{self.kind} needs {name}")
        return self

    def backend(self, name: str, url: str) -> Backend:
        # Raises pydantic's `ValidationError`, a `ValueError`.
        return Backend(
            name=name,
            url=url,
            api_key=self.api_key,
            models=self.models,
            grammars=self.grammars,
            priorities=self.priorities,
        )


class Membership(Section):
    """Backends that join and leave."""

    refresh_s: PositiveFloat = Field(
        2.0, description="Seconds between two looks at a file or into DNS."
    )
    leave_s: float = Field(
        600.0,
        ge=0,
        description="Seconds that streams may go on at a backend that has left; then others "
        "go on with them.",
    )
    members_max: PositiveInt = Field(
        1024, le=16_384, description="Backends in all; what is found beyond is not used."
    )
    drain_poll_s: PositiveFloat = Field(
        2.0, description="Seconds until every replica knows that a backend is drained, or not."
    )
