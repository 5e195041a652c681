"""The systemd unit, and what systemd is told by the process that it starts."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.settings import load_settings
from tests.fakes.postgres import reachable_folder
from tests.fakes.processes import gateway_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.processes import SimulatorProcess

UNIT = Path(__file__).parents[2] / "deploy" / "harmony-gateway.service"
EXPOSURE_MAX = 20
"""Tenths of systemd's scale of exposure, which goes up to ten."""
WAIT_S = 60.0


@pytest.fixture(params=["{folder}/notify", "@harmony-gateway-test-{folder}"])
def manager(request: pytest.FixtureRequest) -> Iterator[tuple[str, socket.socket]]:
    """The address at which systemd would listen, in both forms, and its socket."""
    with reachable_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        address = request.param.format(folder=folder)
        heard.bind(address.replace("@", "\0"))
        heard.settimeout(WAIT_S)
        yield address, heard


@pytest.mark.slow
@pytest.mark.parametrize("admin", [{}, {"port": 0}])
def test_systemd_is_told_when_the_gateway_listens_and_when_it_drains(
    manager: tuple[str, socket.socket],
    admin: dict[str, Any],
    tmp_path: Path,
    database_url: str,
    simulator: SimulatorProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, heard = manager
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with gateway_process(tmp_path, database_url, [simulator.url], admin=admin) as gateway:
        assert heard.recv(100) == b"READY=1"
        assert gateway.url
        gateway.child.terminate()
        assert heard.recv(100) == b"STOPPING=1"
        assert gateway.child.exit_code() == 0


def test_the_unit_waits_longer_than_the_drain() -> None:
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text("utf-8"), re.MULTILINE)
    server = load_settings(environ={}).server
    assert int(stop) > 5 + server.drain_grace_s


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_finds_no_fault_in_the_unit_and_little_exposure(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(
        UNIT.read_text("utf-8").replace("/opt/gateway/bin/harmony-gateway", "/bin/true")
    )
    verified = _analyze("verify", "--man=no", str(copy))
    assert (verified.returncode, verified.stderr) == (0, "")
    exposed = _analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(copy))
    assert exposed.returncode == 0, exposed.stdout


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
