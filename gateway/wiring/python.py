"""The containers that Python runs in: which engines are tried, and what containers may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigError
from gateway.store.tools.files import FileBounds
from gateway.tools.python.containers import ContainerPolicy, ContainerPool
from gateway.tools.python.engine import ContainerLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.settings import Settings
    from gateway.settings.tools import Python
    from gateway.store.postgres.database import Database
    from gateway.tools.python.engine import Engine
    from gateway.tools.python.linux import LinuxEngine


ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of what a server of containers says of a run."""


def containers(
    settings: Settings, database: Database, engines: Sequence[Engine], owner: str
) -> ContainerPool:
    """The containers of one database's tenants in this process; none without engines."""
    return ContainerPool(database, engines, _policy(settings.tools.python), owner=owner)


def linux_engine(python: Python) -> LinuxEngine:
    """Containers of this machine."""
    from gateway.tools.python.cgroups import Cgroups
    from gateway.tools.python.linux import LinuxEngine, LinuxOptions

    return LinuxEngine(
        LinuxOptions(
            interpreter=python.interpreter,
            runsc=python.runsc,
            uids=_uids(python),
            cgroups=Cgroups.find(),
        )
    )


def _uids(python: Python) -> range:
    first, last = map(int, python.user_ids.split("-"))
    return range(first, last + 1)


def engines(python: Python) -> Sequence[Engine]:
    """Those that are tried, the first one first; none where Python is off."""
    return _engines(python) if python.enabled else ()


def _engines(python: Python) -> Sequence[Engine]:
    from gateway.tools.python.monty import MontyEngine
    from gateway.tools.python.wasm import WasmEngine

    linux = linux_engine(python)
    monty = MontyEngine(containers_max=python.open_max + python.warm_max + 1)
    wasm = WasmEngine(_uids(python))
    match python.engine:
        case "linux":
            return (linux,)
        case "wasm":
            return (wasm,)
        case "monty":
            return (monty,)
        case "remote":
            return (_remote(python),)
        case "auto" if python.remote_url is not None:
            return (_remote(python),)
        case _:
            return (linux, wasm, monty)


def _remote(python: Python) -> Engine:
    """A server of containers. Only it is connected to, wherever the operator has it."""
    from ipaddress import ip_network

    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressLimits, client
    from gateway.tools.python.remote import RemoteEngine, port_of

    if python.remote_url is None or python.remote_token is None:
        raise ConfigError(
            "the engine `remote` needs a server of containers",
            where="tools.python.remote_url",
            remedy="Set tools.python.remote_url and remote_token, as docs/python.md tells.",
        )
    url = python.remote_url
    everywhere = (ip_network("0.0.0.0/0"), ip_network("::/0"))
    policy = NetworkPolicy(networks=everywhere, network_ports=frozenset({port_of(url)}))
    limits = EgressLimits(body_bytes_max=python.file_bytes_max + ANSWER_BYTES_MAX)
    connected = client(policy, limits)
    connected.base_url = url
    token = python.remote_token.get_secret_value()
    connected.headers["authorization"] = f"Bearer {token}"
    return RemoteEngine(connected)


def _policy(python: Python) -> ContainerPolicy:
    return python.fill(
        ContainerPolicy,
        files=FileBounds(
            tenant_bytes_max=python.tenant_file_bytes_max,
            container_bytes_max=python.container_bytes_max,
            container_files_max=python.container_files_max,
        ),
        limits=ContainerLimits(data_bytes=python.data_bytes_max, processes=python.processes_max),
    )
