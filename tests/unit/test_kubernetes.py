"""deploy/kubernetes: what can be known of it without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gateway.settings import load_settings

FILE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "gateway.yaml"
THINGS: list[dict[str, Any]] = list(yaml.safe_load_all(FILE.read_text("utf-8")))
BY_NAME = {(one["kind"], one["metadata"]["name"]): one for one in THINGS}
GATEWAY = BY_NAME["Deployment", "gateway"]["spec"]["template"]["spec"]
MIGRATION = BY_NAME["Job", "gateway-migrate"]["spec"]["template"]["spec"]
MAINTENANCE = BY_NAME["CronJob", "gateway-maintain"]["spec"]["jobTemplate"]["spec"]["template"][
    "spec"
]
ENGINE = BY_NAME["StatefulSet", "vllm"]["spec"]["template"]["spec"]


def settings_file() -> str:
    text: str = BY_NAME["ConfigMap", "gateway"]["data"]["gateway.yaml"]
    return text


def test_everything_is_in_one_namespace_and_there_once() -> None:
    assert len(BY_NAME) == len(THINGS)
    assert {one["metadata"]["namespace"] for one in THINGS} == {"llm"}


def test_no_pod_has_rights_in_the_cluster() -> None:
    assert not {"ServiceAccount", "Role", "RoleBinding"} & {kind for kind, _ in BY_NAME}
    for pod in (GATEWAY, MIGRATION, MAINTENANCE, ENGINE):
        assert pod["automountServiceAccountToken"] is False


def test_its_settings_are_valid_and_find_the_engines(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(settings_file())
    settings = load_settings(file, environ={})
    (found_by,) = settings.discovery
    assert found_by.kind == "srv"
    port_label, _, name, rest = (found_by.host or "").split(".", 3)
    service = BY_NAME["Service", name]
    assert rest == f"{service['metadata']['namespace']}.svc.cluster.local"
    assert service["spec"]["clusterIP"] == "None"
    pods = BY_NAME["StatefulSet", "vllm"]["spec"]
    assert service["spec"]["selector"] == pods["template"]["metadata"]["labels"]
    assert pods["serviceName"] == name
    (port,) = ENGINE["containers"][0]["ports"]
    (served,) = service["spec"]["ports"]
    assert served["port"] == port["containerPort"]
    assert port_label == f"_{served['name']}"
    assert settings.server.host == "0.0.0.0"


def test_pods_are_given_the_time_that_streams_may_take(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(settings_file())
    settings = load_settings(file, environ={})
    server = settings.server
    least_s = server.drain_grace_s + server.drain_notice_s + 15
    assert GATEWAY["terminationGracePeriodSeconds"] >= least_s
    command = ENGINE["containers"][0]["command"]
    (told,) = [one for one in command if one.startswith("--shutdown-timeout=")]
    shutdown_s = int(told.partition("=")[2])
    assert ENGINE["terminationGracePeriodSeconds"] > shutdown_s >= settings.membership.leave_s


def test_the_gateway_is_confined_and_reads_secrets_from_files() -> None:
    for pod in (GATEWAY, MIGRATION, MAINTENANCE):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        keys = {
            item["key"]
            for volume in pod["volumes"]
            if "secret" in volume
            for item in volume["secret"]["items"]
        }
        for variable in container["env"]:
            if variable["name"].endswith("_FILE"):
                folder, _, key = variable["value"].rpartition("/")
                assert mounts[folder] == "secrets"
                assert key in keys
        assert set(mounts.values()) == {one["name"] for one in pod["volumes"]}


def environment(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["containers"]
    return {one["name"]: one["value"] for one in container["env"]}


def test_the_owner_of_the_tables_does_what_those_who_serve_may_not() -> None:
    """With the same settings: those of retention say what is removed."""
    serving = environment(GATEWAY)
    for pod in (MIGRATION, MAINTENANCE):
        assert environment(pod)["GATEWAY_CONFIG"] == serving["GATEWAY_CONFIG"]
        assert environment(pod)["DATABASE_URL_FILE"] != serving["DATABASE_URL_FILE"]
    assert MIGRATION["containers"][0]["args"] == ["db", "upgrade"]
    (*shell, line) = MAINTENANCE["containers"][0]["command"]
    assert shell == ["sh", "-c"]
    assert line == "harmony-gateway db maintain && harmony-gateway data purge"


def test_one_replica_stays_while_nodes_are_emptied() -> None:
    budget = BY_NAME["PodDisruptionBudget", "gateway"]["spec"]
    deployment = BY_NAME["Deployment", "gateway"]["spec"]
    assert budget["selector"] == deployment["selector"]
    assert 0 < budget["maxUnavailable"] < deployment["replicas"]


def test_probes_and_ports_are_those_of_the_gateway() -> None:
    (container,) = GATEWAY["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    names = {one["name"] for one in container["ports"]}
    assert {
        container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("readiness", "liveness")
    } <= names
    assert BY_NAME["Service", "gateway"]["spec"]["ports"][0]["targetPort"] in names


def test_only_the_gateway_reaches_the_engines() -> None:
    policy = BY_NAME["NetworkPolicy", "vllm"]["spec"]
    assert policy["podSelector"]["matchLabels"] == {"app": "vllm"}
    ((rule,),) = [policy["ingress"]]
    (source,) = rule["from"]
    labels = BY_NAME["Deployment", "gateway"]["spec"]["template"]["metadata"]["labels"]
    assert source["podSelector"]["matchLabels"] == labels
