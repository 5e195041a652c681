"""The containers of Python: which engines are tried, and what containers may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigError
from gateway.store.tools.files import FileBounds
from gateway.tools.python.container_pool import ContainerPolicy, ContainerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.settings.tools import Python
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics
    from gateway.tools.egress.transport import EgressClient
    from gateway.tools.python.container_engine import ContainerEngine, EngineName
    from gateway.tools.python.linux import LinuxEngine


ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of a run's answer from a server of containers."""


def containers(
    python: Python, database: Database, *, owner: str, metrics: Metrics
) -> ContainerPool:
    policy = python.fill(
        ContainerPolicy, files=FileBounds(tenant_bytes_max=python.tenant_file_bytes_max)
    )
    tried = engines(python) if python.enabled else ()
    return ContainerPool(database, tried, policy, owner=owner, metrics=metrics)


def linux_engine(python: Python) -> LinuxEngine:
    from gateway.tools.python.linux import Cgroups, LinuxEngine, LinuxOptions

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


def engines(python: Python) -> Sequence[ContainerEngine]:
    from gateway.tools.python.monty import MontyEngine

    kinds: Mapping[EngineName, Callable[[], ContainerEngine]] = {
        "linux": lambda: linux_engine(python),
        "monty": lambda: MontyEngine(containers_max=python.open_max + python.warm_max + 1),
        "remote": lambda: _remote(python),
    }
    names: tuple[EngineName, ...]
    if python.engine != "auto":
        names = (python.engine,)
    elif python.remote_url is not None:
        names = ("remote",)
    else:
        names = ("linux", "monty")
    return [kinds[name]() for name in names]


def _remote(python: Python) -> ContainerEngine:
    # Its client may connect only to this server, on any network.
    from gateway.tools.python.remote import RemoteEngine

    if python.remote_url is None or python.remote_token is None:
        raise ConfigError(
            "the engine `remote` needs a server of containers",
            where="tools.python.remote_url",
            remedy="Set tools.python.remote_url and remote_token, as docs/python.md tells.",
        )
    token = python.remote_token.get_secret_value()
    body_bytes_max = python.file_bytes_max + ANSWER_BYTES_MAX
    return RemoteEngine(_client(python.remote_url, f"Bearer {token}", body_bytes_max))


def _client(url: str, authorization: str, body_bytes_max: int) -> EgressClient:
    from ipaddress import ip_network

    from gateway.tools.egress.network_policy import NetworkPolicy, host_and_port_of
    from gateway.tools.egress.transport import EgressLimits, client

    _, port = host_and_port_of(url)
    everywhere = (ip_network("0.0.0.0/0"), ip_network("::/0"))
    policy = NetworkPolicy(networks=everywhere, network_ports=frozenset({port}))
    connected = client(policy, EgressLimits(body_bytes_max=body_bytes_max))
    connected.base_url = url
    connected.headers["authorization"] = authorization
    return connected
