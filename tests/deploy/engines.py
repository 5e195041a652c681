"""What runs the compose file: Docker, with the images that it names or stand-ins, or Podman."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from tests.deploy import stand_ins
from tests.deploy.commands import CommandFailed, pipe, run, succeeds
from tests.deploy.isolation import namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.deploy.isolation import Namespaces

ROOT: Final = Path(__file__).parents[2]
COMPOSE_FILES: Final = tuple(
    ROOT / folder / "compose.yaml" for folder in ("deploy", "tests/deploy")
)
MADE: Final = ROOT / ".make" / "deploy"
PROJECT: Final = "harmony-gateway-test"
READY_WITHIN_S: Final = 120
_WAITS: Final = ("--wait", "--wait-timeout", str(READY_WITHIN_S))
_PAUSE_S: Final = 0.5
_LABEL: Final = f"label=com.docker.compose.project={PROJECT}"
_PODMAN_COMPOSE: Final = MADE / "tools" / "bin" / "podman-compose"
IMAGE: Final = "harmony-gateway"
IMAGE_BEFORE: Final = f"{IMAGE}:before"
"""Of an earlier commit, made by the test that upgrades."""
BUILD_MAX_S: Final = 1_800
"""Seconds that a build takes at most: the first one, on a busy machine, installs all packages."""
_MAKE_MAX_S: Final = 900
REPLICAS: Final = ("gateway-1", "gateway-2")
BACKENDS: Final = ("simulator", "obedient")
REVISION: Final = "revision-under-test"
_NEEDED: Final = ("podman", "buildah", "mmdebstrap", "iptables", "unshare", "nsenter", "ip")


class Engine:
    """Containers of one compose project. `begin` is what every command begins with."""

    program = "docker"
    compose_program: tuple[str, ...] = ("docker", "compose")

    def __init__(self, secrets: Path, published: str, begin: list[str] | None = None) -> None:
        self.secrets = secrets
        self._environ = {
            "GATEWAY_SECRETS": str(secrets),
            "GATEWAY_PUBLISHED": published,
            "GATEWAY_REVISION": REVISION,
        }
        self._begin = begin or []

    def command(self, *arguments: str) -> str:
        """As `docker ARGUMENTS`; returns its output."""
        return run([*self._begin, self.program, *arguments], environ=self._environ)

    def compose(self, *arguments: str) -> str:
        """As `docker compose ARGUMENTS`; returns its output."""
        return run(self._composed(*arguments), environ=self._environ, timeout_s=900)

    def begin_compose(self, *arguments: str) -> subprocess.Popen[bytes]:
        """The same, not waited for."""
        environ = {**os.environ, **self._environ}
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            self._composed(*arguments), env=environ, stdin=quiet, stdout=quiet, stderr=quiet
        )

    def _composed(self, *arguments: str) -> list[str]:
        files = [word for path in COMPOSE_FILES for word in ("-f", str(path))]
        return [*self._begin, *self.compose_program, "-p", PROJECT, *files, *arguments]

    def up(self) -> None:
        """Build the image, start everything, return when it can answer."""
        self.compose("up", "--detach", "--build", *_WAITS)

    def start(self, service: str) -> None:
        """Start one that was stopped; return when it is healthy."""
        self.compose("start", service)
        self.wait_until_healthy(service)

    def use(self, image: str) -> None:
        """What is created from now on is of this image of ours."""
        self._environ["GATEWAY_IMAGE"] = image

    def build(self, root: Path, image: str) -> None:
        """Build an image of ours from another tree."""
        dockerfile = str(root / "deploy" / "Dockerfile")
        build = [self.program, "build", "-f", dockerfile, "-t", image, str(root)]
        run(build, timeout_s=BUILD_MAX_S)

    def begin(self, service: str, profile: str = "") -> None:
        """Start one alone; return when it is healthy."""
        profiles = ("--profile", profile) if profile else ()
        self.compose(*profiles, "up", "--detach", "--no-build", "--no-deps", service)
        self.wait_until_healthy(service)

    def replace(self, *services: str) -> None:
        """Create their containers anew, one after the other, as the page on upgrades says."""
        for service in services:
            self.recreate(service)
            self.wait_until_healthy(service)

    def recreate(self, service: str) -> None:
        """Create its container anew; do not wait for it."""
        recreate = ("up", "--detach", "--no-deps", "--no-build", "--force-recreate")
        self.compose(*recreate, service)

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        profiles = ("--profile", "admin", "--profile", "observability")
        self.compose(*profiles, "down", "--volumes", "--timeout", "10")

    def container(self, service: str) -> str:
        """The id of a service's only container."""
        of_service = f"label=com.docker.compose.service={service}"
        listed = self.command("ps", "--all", "--quiet", "--filter", _LABEL, "--filter", of_service)
        (one,) = listed.split()
        return one

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of its container."""
        (found,) = json.loads(self.command("container", "inspect", self.container(service)))
        return dict(found)

    def address(self, service: str, network: str) -> str:
        """The address of its container in a network of the project."""
        networks = self.inspect(service)["NetworkSettings"]["Networks"]
        return str(networks[f"{PROJECT}_{network}"]["IPAddress"])

    def execute(self, service: str, *command: str) -> str:
        """Run a command in its container, as whoever the container runs as."""
        return self.command("exec", self.container(service), *command)

    def pipe(self, service: str, given: bytes, *command: str) -> bytes:
        """The same, with what it reads; returns what it wrote."""
        whole = [*self._begin, self.program, "exec", "-i", self.container(service), *command]
        return pipe(whole, given, environ=self._environ)

    def logs(self, service: str) -> str:
        """What its container has printed."""
        whole = [*self._begin, self.program, "logs", self.container(service)]
        # A program that runs in a container as its first process writes to either stream.
        return run(["sh", "-c", '"$@" 2>&1', "sh", *whole], environ=self._environ)

    def is_healthy(self, service: str) -> bool:
        """What its own check said last."""
        return bool(self.inspect(service)["State"]["Health"]["Status"] == "healthy")

    def wait_until_healthy(self, service: str) -> None:
        """Raises `CommandFailed` with its log when it takes too long."""
        deadline = time.monotonic() + READY_WITHIN_S
        while not self.is_healthy(service):
            if time.monotonic() > deadline:
                log = self.logs(service)[-4000:]
                raise CommandFailed(f"{service} did not become healthy\n{log}")
            time.sleep(_PAUSE_S)

    def left(self) -> list[str]:
        """Containers, volumes and networks of the project that are there."""
        return [
            line
            for kind in (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
            for line in self.command(*kind, "--quiet", "--filter", _LABEL).split()
        ]


class DockerOnDebian(Engine):
    """With stand-ins, where no image of a registry is to be had."""

    def __init__(self, secrets: Path, published: str) -> None:
        super().__init__(secrets, published)
        self._environ |= stand_ins.IN_COMPOSE

    @override
    def up(self) -> None:
        stand_ins.make(self.program, partial(run, timeout_s=_MAKE_MAX_S))
        self.build(ROOT, IMAGE)
        self.compose("up", "--detach", "--no-build", *_WAITS)

    @override
    def build(self, root: Path, image: str) -> None:
        run(_build_command(self.program, root, image), timeout_s=BUILD_MAX_S)


class Podman(Engine):
    """Without systemd, with storage of its own, and in namespaces of its own.

    Podman 4.3, Debian's, starts no checks without systemd and does not wait for any: services are
    started in their order, and their checks are made from here.
    """

    program = "podman"
    compose_program = (str(_PODMAN_COMPOSE), "--in-pod", "false")

    def __init__(self, secrets: Path, published: str, own: Namespaces) -> None:
        super().__init__(secrets, published, own.begin)
        self._begin_outside = own.begin_outside
        self._environ |= podman_environment()
        self._environ |= stand_ins.IN_COMPOSE

    @override
    def up(self) -> None:
        for service in ("postgres", *BACKENDS):
            self.begin(service)
        self.compose("up", "--detach", "--no-build", "--no-deps", "migrate")
        if self.command("wait", self.container("migrate")).strip() != "0":
            raise CommandFailed(self.logs("migrate"))
        ours = (*REPLICAS, "maintenance", "proxy")
        self.compose("up", "--detach", "--no-build", "--no-deps", *ours)
        for service in (*REPLICAS, "proxy"):
            self.wait_until_healthy(service)

    @override
    def build(self, root: Path, image: str) -> None:
        _build_ours(root, image, self._begin_outside)

    @override
    def is_healthy(self, service: str) -> bool:
        check = [*self._begin, self.program, "healthcheck", "run", self.container(service)]
        return succeeds(check, environ=self._environ)


def podman_environment() -> dict[str, str]:
    """Files that make Podman work where there is no systemd, with images of its own."""
    MADE.mkdir(parents=True, exist_ok=True)
    settings, storage = MADE / "containers.conf", MADE / "storage.conf"
    settings.write_text(
        "[containers]\ndefault_ulimits = []\n"
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        '[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "/run/containers/defined"\n'
    )
    storage.write_text(
        '[storage]\ndriver = "overlay"\nrunroot = "/run/containers/storage"\n'
        f'graphroot = "{MADE}/storage"\n'
    )
    return {"CONTAINERS_CONF": str(settings), "CONTAINERS_STORAGE_CONF": str(storage)}


def why_no_docker() -> str:
    """Empty where Docker and its compose plugin answer."""
    if not succeeds(["docker", "compose", "version"]):
        return "there is no docker compose"
    return "" if succeeds(["docker", "info"]) else "no Docker engine answers"


def why_no_stand_ins() -> str:
    """Empty where images can be made of Debian's packages."""
    if shutil.which("mmdebstrap") is None:
        return "not installed: mmdebstrap"
    return "" if os.geteuid() == 0 else "images of one's own need root"


def why_no_podman() -> str:
    """Empty where Podman can be used as it is here."""
    missing = [program for program in _NEEDED if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "namespaces and images of one's own need root"
    return "" if _PODMAN_COMPOSE.exists() else f"{_PODMAN_COMPOSE} is missing: make test-deploy"


def _build(begin: list[str]) -> None:
    """The images that the compose file names, from what Debian has. Raises `CommandFailed`."""
    environ = podman_environment()

    def execute(command: list[str]) -> str:
        return run([*begin, *command], environ=environ, timeout_s=_MAKE_MAX_S)

    stand_ins.make("podman", execute)
    _build_ours(ROOT, IMAGE, begin)
    execute(["podman", "image", "prune", "--force", "--filter", "until=24h"])


def _build_command(program: str, root: Path, image: str) -> list[str]:
    values = {"PYTHON_IMAGE": stand_ins.PYTHON, "REVISION": REVISION}
    arguments = [word for name in values for word in ("--build-arg", f"{name}={values[name]}")]
    ours = ["-f", str(root / "deploy" / "Dockerfile"), "-t", image, str(root)]
    return [*stand_ins.BUILDS[program], *arguments, *ours]


def _build_ours(root: Path, image: str, begin: list[str]) -> None:
    command = [*begin, *_build_command("podman", root, image)]
    run(command, environ=podman_environment(), timeout_s=BUILD_MAX_S)


@contextmanager
def podman(secrets: Path, published: str) -> Iterator[Podman]:
    """Podman with the images built, and nothing in it that a killed run left behind."""
    with namespaces() as own:
        _build(own.begin)
        with own.network():
            engine = Podman(secrets, published, own)
            engine.command("rm", "--all", "--force", "--time", "0")
            engine.command("volume", "prune", "--force")
            yield engine
