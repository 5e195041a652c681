"""The deployment under test: the image and the compose file as they are, once for all tests."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from openai import OpenAI

from tests.deploy.commands import CommandFailed, run
from tests.deploy.engines import (
    ROOT,
    DockerOnDebian,
    Engine,
    podman,
    why_no_docker,
    why_no_podman,
    why_no_stand_ins,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Deployment:
    """It runs, and has a tenant with a key."""

    engine: Engine
    url: str
    key: str


@contextmanager
def engine_at(secrets: Path, published: str) -> Iterator[Engine]:
    """Docker where there is one, else Podman; skips what asks for it where neither can be used."""
    no_docker, no_podman = why_no_docker(), why_no_podman()
    if not no_docker:
        engine = Engine(secrets, published)
        try:
            engine.compose("pull", "postgres")
        except CommandFailed as error:
            if why := why_no_stand_ins():
                pytest.skip(f"no base image is to be had: {error}; {why}")
            engine = DockerOnDebian(secrets, published)
        yield engine
        return
    if no_podman:
        pytest.skip(f"no containers here: {no_docker}; {no_podman}")
    with podman(secrets, published) as engine:
        yield engine


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """From nothing to a key, and to nothing again."""
    secrets = tmp_path_factory.mktemp("deployment") / "secrets"
    run([str(ROOT / "deploy" / "make-secrets.sh"), str(secrets)])
    published = f"127.0.0.1:{unused_port()}"
    with engine_at(secrets, published) as engine:
        try:
            engine.up()
            admin = ["--profile", "admin", "run", "--rm", "-T", "admin"]
            engine.compose(*admin, "tenants", "create", "acme")
            made = engine.compose(*admin, "keys", "create", "acme", "--json")
            yield Deployment(engine, f"http://{published}", json.loads(made)["key"])
        finally:
            engine.down()
        assert engine.left() == []


@pytest.fixture
def client(deployment: Deployment) -> Iterator[OpenAI]:
    """OpenAI's own, with the tenant's key."""
    with OpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.key, max_retries=0) as one:
        yield one


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
