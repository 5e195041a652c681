"""The settings of discovery: where backends are found that come and go without a restart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from gateway.errors import ConfigError
from gateway.settings.sections import Backend, BearerKey, Name, Section, http_url

if TYPE_CHECKING:
    from typing import Self

ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account: `token`, `ca.crt`, `namespace`."""
PORT_MAX: Final = 65_535
_NEEDED: Final = {
    "file": ("path",),
    "dns": ("host",),
    "srv": ("host",),
    "kubernetes": ("service",),
}


def _named_server(server: str) -> str:
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ValueError("expected an address with a port, such as 10.96.0.10:53")
    return server


class Discovery(Section):
    """A source of backends. All that it finds are treated alike, but those of a file."""

    name: Name = Field(description="Its name in logs, metrics and health checks.")
    kind: Literal["file", "dns", "srv", "kubernetes"] = Field(
        description="file: a list of backends in a file that is watched; dns: the addresses of a "
        "host, such as a headless service; srv: its SRV records; kubernetes: the ready endpoints "
        "of a service, told by the API server.",
    )
    path: Path | None = Field(None, description="file: `backends`, as in gateway.yaml.")
    host: Name | None = Field(None, description="dns, srv: the name to look up.")
    servers: tuple[Annotated[str, AfterValidator(_named_server)], ...] = Field(
        (), description="dns, srv: addresses and ports of name servers; default: the system's."
    )
    service: Name | None = Field(None, description="kubernetes: the name of the service.")
    namespace: Name | None = Field(
        None, description="kubernetes: where the service is; default: where the gateway is."
    )
    api_url: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="kubernetes: the API server; default: as every pod is told."
    )
    account_folder: Path = Field(
        ACCOUNT_FOLDER, description="kubernetes: the folder with token, ca.crt and namespace."
    )
    port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="dns: the port of all backends (default 8000); kubernetes: which of the "
        "endpoints' ports, where there are several.",
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
        """One that was found; raises pydantic's `ValidationError`, a `ValueError`."""
        return Backend(
            name=name,
            url=url,
            api_key=self.api_key,
            models=self.models,
            grammars=self.grammars,
            priorities=self.priorities,
        )

    @property
    def api_server(self) -> str:
        """The URL of the API server. Raises `ConfigError` outside of a cluster."""
        if self.api_url is not None:
            return self.api_url
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ConfigError(
                "this process is in no Kubernetes cluster",
                where=f"discovery {self.name}",
                remedy="Set api_url, or run the gateway in a pod with a service account.",
            )
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class Membership(Section):
    """Backends that join and leave."""

    refresh_s: PositiveFloat = Field(
        2.0, description="Seconds between two looks at a file or into DNS."
    )
    empty_s: float = Field(
        60.0, ge=0, description="Seconds for which an answer of DNS without addresses is doubted."
    )
    answer_s: PositiveFloat = Field(
        5.0, description="Seconds that a name server or an API server may take to answer."
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
