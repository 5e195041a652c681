"""The backends of the settings, and the sources of further ones, for commands, too."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.models.format import PASSTHROUGH
from gateway.settings.loading import read_backends
from gateway.upstreams.backend import Backend, Prefill
from gateway.upstreams.backend_sources import SETTINGS, FileSource

if TYPE_CHECKING:
    from gateway.settings import Settings
    from gateway.settings.sections import Backend as BackendSettings
    from gateway.settings.sections import Discovery
    from gateway.settings.sections import Prefill as PrefillSettings
    from gateway.upstreams.backend_sources import BackendSource


def backends(settings: Settings) -> list[Backend]:
    return [_backend(settings, backend, SETTINGS) for backend in settings.backends]


def sources(settings: Settings) -> list[BackendSource]:
    return [_source(settings, one) for one in settings.discovery]


def _source(settings: Settings, discovery: Discovery) -> BackendSource:
    name, membership = discovery.name, settings.membership

    if (path := discovery.path) is not None and discovery.kind == "file":

        def read() -> tuple[Backend, ...]:
            return tuple(_backend(settings, one, name).checked() for one in read_backends(path))

        return FileSource(name, read, refresh_s=membership.refresh_s)
    from gateway.upstreams.dns_source import DEFAULT_PORT, DnsSource

    def new_backend(address: str) -> Backend:
        backend = discovery.backend(address, f"{discovery.scheme}://{address}")
        return _backend(settings, backend, name).checked()

    assert discovery.host is not None, "the settings see to it"
    return DnsSource(
        name,
        discovery.host,
        new_backend,
        refresh_s=membership.refresh_s,
        servers=discovery.servers,
        port=None if discovery.kind == "srv" else discovery.port or DEFAULT_PORT,
    )


def _backend(settings: Settings, backend: BackendSettings, source: str) -> Backend:
    served = {model.id: model.served_as or model.id for model in settings.models}
    lengths = {m.id: m.context_length for m in settings.models if m.context_length is not None}
    return Backend(
        name=backend.name,
        base_url=backend.url,
        models={
            public: name
            for public, name in served.items()
            if not backend.models or name in backend.models
        }
        or {name: name for name in backend.models},
        api_key=backend.api_key.get_secret_value() if backend.api_key else None,
        context_lengths=lengths,
        grammars=backend.grammars == "auto",
        priorities=backend.priorities,
        dp_rank=backend.dp_rank,
        prefill=_prefill(backend.prefill),
        adapters_of=frozenset(model.id for model in settings.models if model.adapters),
        admin_key=backend.admin_key.get_secret_value() if backend.admin_key else None,
        source=source,
        passed_through=frozenset(m.id for m in settings.models if m.format == PASSTHROUGH),
    )


def _prefill(wanted: PrefillSettings | None) -> Prefill | None:
    if wanted is None:
        return None
    host = wanted.host or urlsplit(wanted.url).hostname or ""
    return Prefill(wanted.url, host, wanted.port)
