"""What is measured: the backend alone, the gateway in front of it, and nginx if there is one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.store.embedded import EmbeddedPostgres
from gateway.store.migrate import upgrade
from gateway.store.postmaster import Postmaster
from tests.fakes.gateway import PEPPER, gateway_settings, new_key
from tests.fakes.postgres import reachable_folder
from tests.load import processes
from tests.load.processes import Child, RunVoid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.load.client import DialectName

BARE: Final = "bare backend"
NGINX: Final = "nginx"
_INFO: Final = '"level": "info"'
_NGINX_CONFIG: Final = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder};
  proxy_temp_path {folder};
  fastcgi_temp_path {folder};
  uwsgi_temp_path {folder};
  scgi_temp_path {folder};
  keepalive_requests 1000000;
  upstream backend {{ server 127.0.0.1:{backend_port}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://backend;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class System:
    """One way to the tokens. `database_pid` is there when it works for this system too."""

    name: str
    dialect: DialectName
    child: Child
    database_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """Everything that runs; the key is the gateway's."""

    systems: tuple[System, ...]
    backend: Child
    key: str


@contextmanager
def running_stack() -> Iterator[Stack]:
    """Start everything and end it by process id. Raises `RunVoid`."""
    with (
        reachable_folder() as folder,
        EmbeddedPostgres(folder / "data") as postgres,
        processes.server(
            [sys.executable, "-m", "tests.load.backend"], folder / "backend.log", os.environ
        ) as backend,
    ):
        backend_url = f"http://127.0.0.1:{backend.port}"
        asyncio.run(upgrade(postgres.url))
        key = asyncio.run(new_key(gateway_settings(postgres.url, [backend_url]), "load"))
        database_pid = _pid_of(folder / "data" / "cluster")
        with _gateway(folder, postgres.url, backend_url) as gateway, _nginx(folder, backend) as raw:
            systems = [System(BARE, "completions", backend)]
            systems += [System(NGINX, "completions", raw)] if raw is not None else []
            systems += [
                System("gateway, store: false", "responses", gateway, database_pid),
                System("gateway, store: true", "responses-stored", gateway, database_pid),
            ]
            yield Stack(tuple(systems), backend, key)


@contextmanager
def _gateway(folder: Path, database_url: str, backend_url: str) -> Iterator[Child]:
    """`serve` with every setting at its default but where things are."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GATEWAY_") and name not in {"DATABASE_URL", "PORT"}
    }
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({"backends": [{"name": "backend", "url": backend_url}]}))
    environ |= {
        "GATEWAY_CONFIG": str(config),
        "GATEWAY_AUTH__KEY_PEPPER": PEPPER,
        "DATABASE_URL": database_url,
    }
    arguments = [sys.executable, "-m", "gateway", "serve", "--port", "0"]
    log = folder / "gateway.log"
    with processes.server(arguments, log, environ) as child:
        try:
            yield child
        except RunVoid as error:
            lines = log.read_text("utf-8", "replace").splitlines()
            said = "\n".join(line for line in lines if _INFO not in line)
            complaints = said[-processes.LOG_CHARS_SHOWN :] or "none"
            raise RunVoid(f"{error}\nComplaints of the gateway:\n{complaints}") from error


@contextmanager
def _nginx(folder: Path, backend: Child) -> Iterator[Child | None]:
    """A proxy that looks at nothing, for comparison; None where it is not installed."""
    program = shutil.which("nginx")
    if program is None:
        yield None
        return
    port = _free_port()
    config = folder / "nginx.conf"
    config.write_text(_NGINX_CONFIG.format(folder=folder, port=port, backend_port=backend.port))
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(config)], start_new_session=True
    )
    try:
        _wait_for(port, process)
        yield Child(process.pid, port)
    finally:
        processes.end(process)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + processes.START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunVoid("nginx did not start") from error
            time.sleep(processes.POLL_INTERVAL_S)
        else:
            return


def _pid_of(cluster: Path) -> int:
    postmaster = Postmaster.read(cluster)
    if postmaster is None:
        raise RunVoid("the database is gone")
    return postmaster.pid
