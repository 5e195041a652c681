"""The image and the compose file do what they are for: `make test-deploy`."""

from __future__ import annotations

import json
import re
import time
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from gateway import __version__
from tests.deploy.commands import CommandFailed, run
from tests.deploy.engines import REPLICAS, REVISION, ROOT

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.deploy.conftest import Deployment

pytestmark = pytest.mark.deploy

OF_THE_SIMULATOR = "gpt-oss-20b"
MODEL = "gpt-oss-120b"
BRIEF = "[[sim think=2 say=ok]] go"
THREE_SECONDS = "[[sim tokens_per_s=100 tokens=300 think=none]] go"
TEN_SECONDS = "[[sim tokens_per_s=100 tokens=1000 think=none]] go"
OURS = (*REPLICAS, "simulator", "maintenance")
LOOKS_MAX = 100
SCRAPED_WITHIN_S = 90
PAUSE_S = 1.0
ROLES = """
SELECT rolname FROM pg_roles
WHERE rolname LIKE 'harmony%' AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls)
"""
ROLES_FILE = "/docker-entrypoint-initdb.d/roles.sql"
SERVING_URL = "/run/secrets/serving_url"
OWNERS = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"


def asked(deployment: Deployment, query: str) -> str:
    """What PostgreSQL answers its superuser."""
    psql = ("psql", "-U", "postgres", "-d", "gateway", "-At", "-c", query)
    return deployment.engine.execute("postgres", *psql).strip()


def prometheus(deployment: Deployment, path: str) -> Any:
    """The data of what its API answers."""
    url = f"http://127.0.0.1:9090/api/v1/{path}"
    return json.loads(deployment.engine.execute("prometheus", "wget", "-qO-", url))["data"]


def test_a_request_is_answered(client: OpenAI) -> None:
    response = client.responses.create(model=OF_THE_SIMULATOR, input="Hello")
    assert response.status == "completed"
    assert "Hello" in response.output_text


def test_a_response_is_kept(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=BRIEF)
    assert (response.status, response.output_text) == ("completed", "ok")
    assert client.responses.retrieve(response.id).output_text == "ok"


def test_a_background_response_is_resumed_at_the_other_replica(
    deployment: Deployment, client: OpenAI
) -> None:
    with client.responses.create(
        model=MODEL, input=THREE_SECONDS, background=True, stream=True
    ) as events:
        seen = list(islice(events, 6))
        (created, *_) = seen
        assert created.type == "response.created"
        # The proxy sends it to the replica that has fewer connections: the first stream is open.
        with client.responses.retrieve(
            created.response.id, stream=True, starting_after=seen[-1].sequence_number
        ) as others:
            seen += others
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    served = [serving(deployment, method, created.response.id) for method in ("POST", "GET")]
    assert sorted(served) == sorted(REPLICAS)


def serving(deployment: Deployment, method: str, response_id: str) -> str:
    """The replica whose log has a request with this method for the response."""
    wanted = f'"method":"{method}"'
    for _ in range(LOOKS_MAX):
        for replica in REPLICAS:
            log = deployment.engine.logs(replica).replace(": ", ":").splitlines()
            if any(wanted in line and response_id in line for line in log):
                return replica
    raise AssertionError(f"no replica logged {method} for {response_id}")


def test_a_stop_lets_streams_end_and_loses_no_background_response(
    deployment: Deployment, client: OpenAI
) -> None:
    engine = deployment.engine
    with client.responses.create(
        model=MODEL, input=TEN_SECONDS, background=True, stream=True
    ) as events:
        seen_before = list(islice(events, 6))
    with client.responses.create(model=MODEL, input=THREE_SECONDS, stream=True) as events:
        seen = list(islice(events, 6))
        with engine.begin_compose("stop", *REPLICAS) as stopping:
            seen += events
            assert seen[-1].type == "response.completed"
            assert stopping.wait(timeout=180) == 0
    for replica in REPLICAS:
        state = engine.inspect(replica)["State"]
        assert (state["Running"], state["ExitCode"]) == (False, 0)
    for service in (*REPLICAS, "proxy"):
        engine.start(service)
    (created, *_) = seen_before
    assert created.type == "response.created"
    with client.responses.retrieve(
        created.response.id, stream=True, starting_after=seen_before[-1].sequence_number
    ) as events:
        seen_before += events
    assert [event.sequence_number for event in seen_before] == list(range(len(seen_before)))
    assert seen_before[-1].type == "response.completed"


@pytest.mark.parametrize("service", OURS)
def test_a_container_of_ours_can_do_little(deployment: Deployment, service: str) -> None:
    status = deployment.engine.execute(service, "cat", "/proc/self/status").splitlines()
    said = dict(line.split(":\t", 1) for line in status)
    assert said["Uid"].split() == ["10001"] * 4
    assert said["Gid"].split() == ["10001"] * 4
    assert int(said["CapBnd"], 16) == 0
    assert said["NoNewPrivs"] == "1"
    with pytest.raises(CommandFailed, match="Read-only file system"):
        deployment.engine.execute(service, "touch", "/var/lib/harmony-gateway/file")


@pytest.mark.parametrize("service", [*OURS, "postgres", "proxy"])
def test_a_container_is_bounded(deployment: Deployment, service: str) -> None:
    limits = deployment.engine.inspect(service)["HostConfig"]
    assert limits["Memory"] > 0
    assert limits["PidsLimit"] > 0
    assert limits["ReadonlyRootfs"] is True


def test_no_role_of_ours_is_a_superuser_or_makes_roles(deployment: Deployment) -> None:
    assert asked(deployment, ROLES) == ""
    assert asked(deployment, OWNERS) == "harmony_gateway_owner"


def test_what_serves_cannot_do_what_the_owner_of_the_tables_does(deployment: Deployment) -> None:
    # By address: what maintains the tables connects as their owner, whenever its hour has come.
    users = "SELECT DISTINCT usename FROM pg_stat_activity WHERE client_addr = '{}'"
    for replica in REPLICAS:
        address = deployment.engine.address(replica, "database")
        assert asked(deployment, users.format(address)) == "harmony_gateway"
    with pytest.raises(CommandFailed, match="it does not own the tables"):
        deployment.engine.execute("gateway-1", "harmony-gateway", "tenants", "create", "other")


def test_days_of_the_log_are_made_by_the_owner(deployment: Deployment) -> None:
    days = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass"
    assert int(asked(deployment, days)) > 1


def test_a_backend_cannot_find_the_database(deployment: Deployment) -> None:
    look = "import socket; print(socket.gethostbyname('postgres'))"
    with pytest.raises(CommandFailed, match="gaierror"):
        deployment.engine.execute("simulator", "python", "-c", look)
    assert deployment.engine.execute("gateway-1", "python", "-c", look)


def test_the_image_tells_what_it_is_and_what_is_in_it(deployment: Deployment) -> None:
    labels = deployment.engine.inspect("gateway-1")["Config"]["Labels"]
    label = "org.opencontainers.image."
    assert labels[f"{label}version"] == __version__
    assert labels[f"{label}revision"] == REVISION
    assert labels[f"{label}licenses"] == "Apache-2.0"
    for name, component in (("gateway", "asyncpg"), ("sandbox", "numpy")):
        text = deployment.engine.execute("gateway-1", "cat", f"/opt/{name}/sbom.cdx.json")
        listed = json.loads(text)
        assert listed["bomFormat"] == "CycloneDX"
        assert component in {one["name"] for one in listed["components"]}


def test_prometheus_reads_every_gateway_and_has_our_rules(deployment: Deployment) -> None:
    deployment.engine.begin("prometheus", profile="observability")
    up, deadline = quote("up{job='gateway'} == 1"), time.monotonic() + SCRAPED_WITHIN_S
    while len(prometheus(deployment, f"query?query={up}")["result"]) < len(REPLICAS):
        assert time.monotonic() < deadline, deployment.engine.logs("prometheus")
        time.sleep(PAUSE_S)
    groups = prometheus(deployment, "rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    text = (ROOT / "deploy" / "observability" / "rules.yaml").read_text()
    assert {rule["name"] for rule in rules} == set(re.findall(r"(?:alert|record): (\S+)", text))
    assert [rule for rule in rules if rule["health"] == "err"] == []


def test_the_password_of_a_role_is_rotated(deployment: Deployment, client: OpenAI) -> None:
    """With the commands of the page."""
    engine = deployment.engine
    password = engine.secrets / "serving_password"
    before = password.read_text()
    password.unlink()
    run([str(ROOT / "deploy" / "make-secrets.sh"), str(engine.secrets)])
    assert password.read_text() != before
    names = ("owner_password", "serving_password")
    variables = [
        word for name in names for word in ("-v", f"{name}={(engine.secrets / name).read_text()}")
    ]
    superuser = ("psql", "-U", "postgres", "-d", "gateway")
    engine.execute("postgres", *superuser, *variables, "-f", ROLES_FILE)
    # Connections that are open stay.
    assert client.responses.create(model=MODEL, input=BRIEF).output_text == "ok"
    for replica in REPLICAS:
        engine.replace(replica)
        assert client.responses.create(model=MODEL, input=BRIEF).output_text == "ok"
    engine.recreate("maintenance")
    assert engine.execute("gateway-1", "cat", SERVING_URL).count(password.read_text()) == 1


def test_a_backup_is_restored_into_an_empty_cluster(deployment: Deployment, client: OpenAI) -> None:
    """With the commands of the page."""
    engine = deployment.engine
    before = client.responses.create(model=MODEL, input=BRIEF)
    superuser = ("-U", "postgres")
    roles = engine.pipe("postgres", b"", "pg_dumpall", *superuser, "--roles-only")
    assert b"harmony_gateway_owner" in roles
    dump = engine.pipe("postgres", b"", "pg_dump", *superuser, "--format", "custom", "gateway")
    engine.down()
    engine.begin("postgres")
    assert asked(deployment, "SELECT to_regclass('responses') IS NULL") == "t"
    restore = ("pg_restore", *superuser, "--exit-on-error", "--dbname", "gateway")
    engine.pipe("postgres", dump, *restore)
    engine.up()
    assert client.responses.retrieve(before.id).output_text == "ok"
    after = client.responses.create(model=MODEL, input=BRIEF, previous_response_id=before.id)
    assert after.output_text == "ok"
