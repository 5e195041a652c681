"""Reverse proxies of others as processes, with the configurations that `deploy` has."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from tests.fakes.processes import START_TIMEOUT_S, STEP_S, reserved_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[2]
PROXIES: Final = ROOT / "deploy" / "proxies"
_TOOLS: Final = ROOT / ".make" / "deploy" / "tools" / "bin"
_EXAMPLES: Final = ("192.0.2.21", "192.0.2.22")
"""Addresses of the gateways in the files, all at port 8000."""
_NGINX_MAIN: Final = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder};
  proxy_temp_path {folder};
  fastcgi_temp_path {folder};
  uwsgi_temp_path {folder};
  scgi_temp_path {folder};
  include {folder}/included.conf;
}}
"""


def program(name: str) -> str:
    """Where the proxy is installed; skips the test where it is not."""
    folders = os.pathsep.join([os.environ["PATH"], "/usr/sbin", str(_TOOLS)])
    found = shutil.which(name, path=folders)
    if found is None:
        pytest.skip(
            f"{name} is not installed: Debian has all but Envoy, `make test-deploy` brings that"
        )
    return found


@contextmanager
def proxy(
    name: str, folder: Path, gateways: Sequence[str], patience: str | None = None
) -> Iterator[str]:
    """The URL of this proxy in front of the URLs of two gateways.

    `patience` is how long it waits for an answer, in place of what its file says.
    """
    installed = program(name)
    hosts = [urlsplit(url).netloc for url in gateways]
    text = (PROXIES / FILES[name]).read_text("utf-8")
    if patience is not None:
        text = re.sub(r"\b(1h|3600s)\b", patience, text)
    with reserved_port() as port:
        arguments, environ = _COMMANDS[name](text, folder, port, hosts)
        with listening([installed, *arguments], port, folder, environ):
            yield f"http://127.0.0.1:{port}"


@contextmanager
def nginx_with(configuration: str, port: int, folder: Path) -> Iterator[None]:
    """An nginx with this configuration of its servers."""
    with listening([program("nginx"), *_nginx_arguments(configuration, folder)], port, folder, {}):
        yield


@contextmanager
def listening(
    command: Sequence[str], port: int, folder: Path, environ: dict[str, str]
) -> Iterator[None]:
    """The process of a proxy, once it accepts connections at this port."""
    log = folder / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environ},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _accepts(port):
            said = log.read_text("utf-8", "replace")[-4000:]
            assert process.poll() is None, f"it ended:\n{said}"
            assert time.monotonic() < deadline, f"it does not listen:\n{said}"
            time.sleep(STEP_S)
        yield
    finally:
        process.terminate()
        process.wait()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=START_TIMEOUT_S).close()
    except ConnectionError:
        return False
    return True


def _nginx_arguments(configuration: str, folder: Path) -> list[str]:
    (folder / "included.conf").write_text(configuration)
    main = folder / "nginx.conf"
    main.write_text(_NGINX_MAIN.format(folder=folder))
    return ["-p", str(folder), "-c", str(main), "-e", "stderr"]


def _nginx(
    text: str, folder: Path, port: int, hosts: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    for example, host in zip(_EXAMPLES, hosts, strict=True):
        text = text.replace(f"{example}:8000", host)
    return _nginx_arguments(text, folder), {}


def _haproxy(
    text: str, folder: Path, port: int, hosts: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    (folder / "haproxy.cfg").write_text(text)
    environ = {"PORT": str(port), "GATEWAY_1": hosts[0], "GATEWAY_2": hosts[1]}
    return ["-db", "-f", str(folder / "haproxy.cfg")], environ


def _caddy(
    text: str, folder: Path, port: int, hosts: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    (folder / "Caddyfile").write_text(text)
    environ = {"SITE": f":{port}", "GATEWAY_1": hosts[0], "GATEWAY_2": hosts[1]}
    environ |= {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    return ["run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"], environ


def _envoy(
    text: str, folder: Path, port: int, hosts: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    text = text.replace("0.0.0.0, port_value: 80}", f"127.0.0.1, port_value: {port}}}")
    for example, host in zip(_EXAMPLES, hosts, strict=True):
        address, _, number = host.partition(":")
        text = text.replace(f"{example}, port_value: 8000", f"{address}, port_value: {number}")
    (folder / "envoy.yaml").write_text(text)
    arguments = ["--concurrency", "1", "--disable-hot-restart"]
    return ["-c", str(folder / "envoy.yaml"), *arguments], {}


_COMMANDS: Final = {"nginx": _nginx, "haproxy": _haproxy, "caddy": _caddy, "envoy": _envoy}
FILES: Final = {
    "nginx": "nginx.conf",
    "haproxy": "haproxy.cfg",
    "caddy": "Caddyfile",
    "envoy": "envoy.yaml",
}
