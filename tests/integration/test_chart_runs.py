"""What the pods of deploy/chart run, with the files and variables that they have there.

Only addresses are others: the folders of mounts, the port, the engine and PostgreSQL.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from scripts.chart.goldens import DATA, golden
from tests.fakes.gateway import PEPPER
from tests.fakes.logins import OWNER, SERVING, make_roles
from tests.fakes.processes import Child, GatewayProcess, stopped
from tests.fakes.simulator import simulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from scripts.chart.goldens import Object
    from tests.fakes.postgres import PostgresServer

pytestmark = pytest.mark.slow

SECRET_MOUNT, CONFIG_MOUNT, KEY_MOUNT = "/run/secrets/gateway", "/etc/gateway", "/run/secrets/test"
COMMAND_TIMEOUT_S = 60
MINIMAL: list[Object] = [*yaml.safe_load_all(golden(DATA / "minimal"))]
ENGINE = "http://gpu-1.example.com:8000"
"""In the value set."""


def found(kind: str, suffix: str = "") -> Object:
    (one,) = (
        one for one in MINIMAL if one["kind"] == kind and one["metadata"]["name"].endswith(suffix)
    )
    return one


def container(template: Object) -> Object:
    one: Object
    (one,) = template["spec"]["containers"]
    return one


@dataclass(frozen=True)
class Mounts:
    """The folders that stand for the mounts of pods."""

    folder: Path

    def environment(self, container: Object) -> dict[str, str]:
        folders = {SECRET_MOUNT: "secrets", CONFIG_MOUNT: "config", KEY_MOUNT: "test"}
        variables = {}
        for one in container["env"]:
            mount, _, name = one["value"].rpartition("/")
            local = self.folder / folders[mount] / name if mount in folders else one["value"]
            variables[one["name"]] = str(local)
        return variables

    def run(self, container: Object, *, arguments: list[str] | None = None) -> str:
        """What the command of a container prints, once it has ended well."""
        child = Child(arguments or container["args"], self.environment(container))
        with stopped(child):
            assert child.exit_code() == 0, child.output
        return child.output


@pytest.fixture(scope="module")
async def database(postgres: PostgresServer) -> AsyncIterator[str]:
    name = await postgres.create()
    make_roles(postgres.database_url(name))
    yield name
    await postgres.drop(name)


@pytest.fixture(scope="module")
def mounts(
    postgres: PostgresServer, database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mounts]:
    folder = tmp_path_factory.mktemp("pod")
    with simulator() as engine:
        config = found("ConfigMap")["data"]
        assert ENGINE in config["gateway.yaml"]
        files = {
            "secrets/owner_url": postgres.database_url(database, user=OWNER),
            "secrets/serving_url": postgres.database_url(database, user=SERVING),
            "secrets/key_pepper": PEPPER,
            "config/gateway.yaml": config["gateway.yaml"].replace(ENGINE, engine.url),
        }
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n", "utf-8")
        yield Mounts(folder)


@pytest.fixture(scope="module")
def gateway(mounts: Mounts) -> Iterator[GatewayProcess]:
    """Of the Deployment, after the Job, as Helm has it."""
    mounts.run(container(found("Job")["spec"]["template"]))
    serving = container(found("Deployment")["spec"]["template"])
    child = Child([*serving["args"], "--port", "0"], mounts.environment(serving))
    with stopped(child):
        yield GatewayProcess(child)


def helm_test(mounts: Mounts, url: str, model: str) -> subprocess.CompletedProcess[str]:
    """The pod of `helm test`, in front of this gateway."""
    production = yaml.safe_load_all(golden(DATA / "production"))
    pod = container(next(one for one in production if one["kind"] == "Pod"))
    environment: dict[str, Any] = mounts.environment(pod)
    python, *arguments = pod["command"]
    assert python == "python"
    return subprocess.run(
        [sys.executable, *arguments],
        env={**environment, "SERVICE_URL": url, "TEST_MODEL": model},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def test_a_release_migrates_serves_answers_and_is_maintained(
    mounts: Mounts, gateway: GatewayProcess
) -> None:
    url = gateway.url
    owner = container(found("CronJob", "-maintenance")["spec"]["jobTemplate"]["spec"]["template"])
    purge = container(found("CronJob", "-purge")["spec"]["jobTemplate"]["spec"]["template"])
    mounts.run(owner)
    mounts.run(purge)
    mounts.run(owner, arguments=["tenants", "create", "acme"])
    key = mounts.run(owner, arguments=["keys", "create", "acme"])
    (secret,) = (word for word in key.split() if word.startswith("sk-"))
    file = mounts.folder / "test" / "api_key"
    file.parent.mkdir()
    file.write_text(secret, "utf-8")
    tested = helm_test(mounts, url, "gpt-oss-20b")
    assert (tested.returncode, tested.stderr) == (0, "")
    assert tested.stdout == "ready\nanswered by gpt-oss-20b\n"
    unknown = helm_test(mounts, url, "no-such-model")
    assert unknown.returncode == 1
    assert "model_not_found" in unknown.stderr
    file.write_text("sk-unknown", "utf-8")
    refused = helm_test(mounts, url, "gpt-oss-20b")
    assert refused.returncode == 1
    assert "/v1/responses: 401" in refused.stderr
    assert gateway.child.stop() == 0
    gone = helm_test(mounts, url, "gpt-oss-20b")
    assert gone.returncode == 1
    assert gone.stderr.startswith("/readyz: ")


def test_a_variable_that_kubernetes_makes_of_a_service_stops_the_gateway(mounts: Mounts) -> None:
    """Why pods have no service links: the Service of a release may be named gateway."""
    serving = container(found("Deployment")["spec"]["template"])
    linked = {**mounts.environment(serving), "GATEWAY_SERVICE_HOST": "10.96.0.7"}
    with stopped(Child(serving["args"], linked)) as child:
        assert child.exit_code() != 0
        assert "GATEWAY_SERVICE_HOST: there is no such setting" in child.output
