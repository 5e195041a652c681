"""deploy/chart: what can be known of the goldens without a cluster and without Helm.

`tests/unit/test_chart_rendering.py` renders them anew, and `tests/integration/test_chart_runs.py`
runs what their pods would.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from gateway import __version__
from gateway.api.access.authentication import EXCHANGE_PATH, PUBLIC_PATHS
from gateway.settings import load_settings
from gateway.settings.sections import Membership, Server
from scripts.chart.goldens import (
    CASES,
    CHART,
    DATA,
    KUBERNETES,
    NAMESPACE,
    OBSERVABILITY,
    ROOT,
    SCHEMA,
    golden,
    header,
    identity,
)
from scripts.chart.schema import PREFIX, with_settings
from tests.fakes.cases import each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.settings import Settings

Object = dict[str, Any]
RULES = ROOT / "deploy" / "observability" / "rules.yaml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
CUSTOM: dict[str, Object] = yaml.safe_load((DATA / "custom_resources.yaml").read_text("utf-8"))
SECRETS_FOLDER, CONFIG_FOLDER = "/run/secrets/gateway", "/etc/gateway"
CLOSE_S = 15
"""Seconds that a pod has to end after its streams."""
HOOK_WEIGHT = "helm.sh/hook-weight"
SECRET_CONTENTS = {
    "DATABASE_URL": "postgresql://gateway@127.0.0.1/gateway",
    "GATEWAY_REASONING__SEALING_KEYS": '[{"id": "a", "secret": "sixteen characters"}]',
}
"""Of secrets that the settings check; all others may be any text."""

of_every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@cache
def objects(case: Path) -> list[Object]:
    return list(yaml.safe_load_all(golden(case)))


def of_kind(case: Path, kind: str) -> list[Object]:
    return [one for one in objects(case) if one["kind"] == kind]


def pod_template(one: Object) -> Object | None:
    """The pod that an object makes, with its labels."""
    spec = one.get("spec", {})
    if one["kind"] == "Pod":
        return one
    if one["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Object | None = spec.get("template")
    return template


def pods(case: Path) -> Iterator[tuple[Object, Object]]:
    for one in objects(case):
        if template := pod_template(one):
            yield template, one


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def deployment(case: Path) -> Object:
    (one,) = of_kind(case, "Deployment")
    return one


def server(case: Path) -> Object:
    *_, container = containers(deployment(case)["spec"]["template"])
    return container


def matches(selector: Object, pod: Object) -> bool:
    wanted: dict[str, str] = selector["matchLabels"]
    labels: dict[str, str] = pod["metadata"]["labels"]
    return wanted.items() <= labels.items()


def environment(container: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"]}


def weight(one: Object) -> int:
    return int(one["metadata"].get("annotations", {}).get(HOOK_WEIGHT, 0))


def is_hook(one: Object) -> bool:
    return "helm.sh/hook" in one["metadata"].get("annotations", {})


def settings(case: Path, container: Object, folder: Path) -> Settings:
    """What the gateway reads in this container, from the files that are mounted there."""
    (config,) = (one for one in of_kind(case, "ConfigMap") if "gateway.yaml" in one["data"])
    (folder / "gateway.yaml").write_text(config["data"]["gateway.yaml"], "utf-8")
    variables = {}
    for name, value in environment(container).items():
        variables[name] = value.replace(CONFIG_FOLDER, str(folder))
        if name.endswith("_FILE"):
            file = folder / Path(value).name
            content = SECRET_CONTENTS.get(
                name.removesuffix("_FILE"), "thirty-two characters of text"
            )
            file.write_text(content, "utf-8")
            variables[name] = str(file)
    return load_settings(environ=variables)


@of_every_case
def test_goldens_are_as_new_as_the_templates_and_values(case: Path) -> None:
    assert golden(case).startswith(header(case)), "run `make chart-render`"


@pytest.mark.slow
@of_every_case
def test_kubernetes_takes_every_object(case: Path) -> None:
    for one in objects(case):
        if f"{one['apiVersion']}/{one['kind']}" not in CUSTOM:
            for version in KUBERNETES:
                kubernetes_validate.validate(one, version, strict=True)


@of_every_case
def test_custom_resources_are_as_their_definitions_say(case: Path) -> None:
    for one in objects(case):
        if schema := CUSTOM.get(f"{one['apiVersion']}/{one['kind']}"):
            jsonschema.validate(one["spec"], schema)


def test_every_custom_resource_is_in_a_golden() -> None:
    made = {f"{one['apiVersion']}/{one['kind']}" for case in CASES for one in objects(case)}
    assert CUSTOM.keys() <= made


def test_our_alerts_fit_into_a_prometheus_rule() -> None:
    kind = "monitoring.coreos.com/v1/PrometheusRule"
    jsonschema.validate(yaml.safe_load(RULES.read_text("utf-8")), CUSTOM[kind])


@of_every_case
def test_objects_are_there_once_in_the_namespace_with_short_names(case: Path) -> None:
    found = [identity(one) for one in objects(case)]
    assert len(set(found)) == len(found)
    assert {one["metadata"]["namespace"] for one in objects(case)} == {NAMESPACE}
    assert [one for kind, one in found if len(one) > (52 if kind == "CronJob" else 63)] == []
    assert not {"ServiceAccount", "Role", "RoleBinding", "Secret"} & {kind for kind, _ in found}


@of_every_case
def test_every_pod_is_confined(case: Path) -> None:
    for pod, _ in pods(case):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        secured = spec["securityContext"]
        assert secured["runAsNonRoot"] is True
        assert secured["seccompProfile"] == {"type": "RuntimeDefault"}
        user = None if case.name == "gitops" else 10001
        assert (secured.get("runAsUser"), secured.get("fsGroup")) == (user, user)
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def test_pods_run_as_the_user_of_the_image() -> None:
    (numbers,) = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert values["runAs"] == dict(zip(("user", "group"), map(int, numbers), strict=True))


@of_every_case
def test_no_pod_has_variables_that_kubernetes_makes_of_services(case: Path) -> None:
    """Of a Service named gateway they are GATEWAY_PORT and others: the gateway would not start."""
    assert [pod for pod, _ in pods(case) if pod["spec"]["enableServiceLinks"]] == []


@of_every_case
def test_all_containers_are_of_one_image(case: Path) -> None:
    images = {container["image"] for pod, _ in pods(case) for container in containers(pod)}
    assert len(images) == 1


@of_every_case
def test_secrets_are_files_and_never_values(case: Path) -> None:
    for pod, _ in pods(case):
        volumes = {one["name"]: one for one in pod["spec"].get("volumes", ())}
        mounted = set()
        for container in containers(pod):
            assert "envFrom" not in container
            assert [one for one in container["env"] if one.keys() != {"name", "value"}] == []
            mounts = {one["mountPath"]: one["name"] for one in container.get("volumeMounts", ())}
            mounted |= set(mounts.values())
            for name, value in environment(container).items():
                if name.endswith("_FILE") and value:
                    folder, _, key = value.rpartition("/")
                    secret = volumes[mounts[folder]]["secret"]
                    assert key in {one["path"] for one in secret["items"]}
                    assert secret["defaultMode"] == 0o440
        assert mounted == volumes.keys()


@of_every_case
def test_the_owners_password_is_only_where_its_work_is_done(case: Path) -> None:
    serving = environment(server(case))
    mounts = {one["name"] for one in server(case)["volumeMounts"]}
    assert "owner" not in mounts
    for pod, one in pods(case):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        if component in {"migration", "maintenance"}:
            (container,) = containers(pod)
            assert environment(container)["DATABASE_URL_FILE"] != serving["DATABASE_URL_FILE"]
        elif one["kind"] == "Pod":
            assert "DATABASE_URL_FILE" not in environment(containers(pod)[0])


@of_every_case
def test_the_settings_of_every_pod_are_those_of_the_gateway(case: Path, tmp_path: Path) -> None:
    """A variable or key that is no setting is a mistake to the loader."""
    for pod, _ in pods(case):
        for container in containers(pod):
            if "GATEWAY_CONFIG" in environment(container):
                read = settings(case, container, tmp_path)
                assert read.server.host == "0.0.0.0"
                assert read.database.url is not None
                assert read.auth.key_pepper is not None
                assert read.models or read.backends or read.discovery


@of_every_case
def test_ports_are_those_that_the_gateway_listens_on(case: Path, tmp_path: Path) -> None:
    read = settings(case, server(case), tmp_path)
    ports = {one["name"]: one["containerPort"] for one in server(case)["ports"]}
    admin = {} if read.admin.port is None else {"admin": read.admin.port}
    assert ports == {"http": read.server.port, **admin}
    assert read.admin.port is None or read.admin.host == "0.0.0.0"
    for service in of_kind(case, "Service"):
        (port,) = service["spec"]["ports"]
        assert port["targetPort"] in ports
        if port["targetPort"] == "admin":
            assert service["spec"]["type"] == "ClusterIP"
    assert len(of_kind(case, "Service")) == len(ports)


@of_every_case
def test_a_pod_has_the_time_that_its_streams_may_take(case: Path, tmp_path: Path) -> None:
    drained = settings(case, server(case), tmp_path).server
    assert drained.drain_notice_s > 0
    grace_s = deployment(case)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= drained.drain_grace_s + drained.drain_notice_s + CLOSE_S


def test_the_drain_is_that_of_the_gateway_unless_a_value_says_otherwise() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert values["config"]["server"]["drain_grace_s"] == Server().drain_grace_s


@of_every_case
def test_probes_restart_nothing_that_only_waits(case: Path) -> None:
    probes = {kind: server(case)[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    paths = {kind: probe["httpGet"]["path"] for kind, probe in probes.items()}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {"http"}
    patience_s = {
        kind: probe["periodSeconds"] * probe["failureThreshold"] for kind, probe in probes.items()
    }
    assert patience_s["liveness"] >= 60
    assert patience_s["startup"] >= 60
    assert patience_s["readiness"] < 5


@of_every_case
def test_replicas_are_replaced_without_a_gap(case: Path) -> None:
    spec = deployment(case)["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (budget,) = of_kind(case, "PodDisruptionBudget")
    assert budget["spec"]["selector"] == spec["selector"]
    assert budget["spec"]["maxUnavailable"] == 1
    for spread in spec["template"]["spec"]["topologySpreadConstraints"]:
        assert spread["labelSelector"] == spec["selector"]


@of_every_case
def test_selectors_are_of_the_pods_that_serve_and_never_change(case: Path) -> None:
    """What a release or a version adds to the labels may not be in a selector."""
    serving = deployment(case)
    template = serving["spec"]["template"]
    selected = serving["spec"]["selector"]["matchLabels"]
    assert selected.keys() == {
        f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")
    }
    assert matches(serving["spec"]["selector"], template)
    services = [one["spec"]["selector"] for one in of_kind(case, "Service")]
    for pod, one in pods(case):
        is_serving = one["kind"] == "Deployment"
        assert all(
            (chosen.items() <= pod["metadata"]["labels"].items()) is is_serving
            for chosen in services
        )
        assert matches(serving["spec"]["selector"], pod) is is_serving


@of_every_case
def test_the_number_of_replicas_is_said_by_one(case: Path) -> None:
    scalers = [*of_kind(case, "HorizontalPodAutoscaler"), *of_kind(case, "ScaledObject")]
    assert ("replicas" in deployment(case)["spec"]) is (not scalers)
    for scaler in scalers:
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment(case)["metadata"]["name"]


def test_replicas_leave_one_by_one_however_they_are_scaled() -> None:
    """A stream lives minutes: ten minutes of less work, and then a pod each five."""
    (hpa,) = of_kind(DATA / "production", "HorizontalPodAutoscaler")
    (scaled,) = of_kind(DATA / "keda", "ScaledObject")
    keda = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    assert hpa["spec"]["behavior"] == keda["behavior"]
    assert hpa["spec"]["behavior"]["scaleDown"] == {
        "stabilizationWindowSeconds": 600,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
    }


def test_what_keda_asks_is_labelled_by_the_service_monitor() -> None:
    (scaled,) = of_kind(DATA / "keda", "ScaledObject")
    (service,) = of_kind(DATA / "keda", "Service")
    (monitor,) = of_kind(DATA / "keda", "ServiceMonitor")
    (trigger,) = scaled["spec"]["triggers"]
    assert f'namespace="{NAMESPACE}"' in trigger["metadata"]["query"]
    assert f'service="{service["metadata"]["name"]}"' in trigger["metadata"]["query"]
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )


def test_prometheus_fetches_from_each_pod_once_under_the_name_of_the_alerts() -> None:
    case = DATA / "production"
    (monitor,) = of_kind(case, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [one for one in of_kind(case, "Service") if wanted <= one["metadata"]["labels"].items()]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert [[port["name"] for port in one["spec"]["ports"]] for one in found] == [
        [endpoint["port"]]
    ]
    (job,) = endpoint["relabelings"]
    assert job["targetLabel"] == "job"
    assert f'job="{job["replacement"]}"' in RULES.read_text("utf-8")


def test_alerts_and_boards_are_those_of_the_files() -> None:
    case = DATA / "production"
    (rule,) = of_kind(case, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((DATA / "observability/rules.yaml").read_text("utf-8"))
    boards: dict[str, str] = {}
    for one in of_kind(case, "ConfigMap"):
        if one["metadata"]["labels"].get("grafana_dashboard") == "1":
            boards |= one["data"]
    files = (DATA / "observability" / "dashboards").glob("*.json")
    assert {name: json.loads(text) for name, text in boards.items()} == {
        file.name: json.loads(file.read_text("utf-8")) for file in files
    }


def test_the_chart_links_to_the_alerts_and_has_no_copy() -> None:
    link = CHART / OBSERVABILITY
    assert link.is_symlink()
    assert link.resolve() == RULES.parent


@of_every_case
def test_only_the_api_is_reachable_from_outside(case: Path) -> None:
    """Health and metrics have no key, so no path of theirs may be routed."""
    routed: set[tuple[str, str]] = set()
    for ingress in of_kind(case, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            routed |= {(path["pathType"], path["path"]) for path in rule["http"]["paths"]}
    for route in of_kind(case, "HTTPRoute"):
        (rule,) = route["spec"]["rules"]
        kinds = {"PathPrefix": "Prefix", "Exact": "Exact"}
        routed |= {(kinds[one["path"]["type"]], one["path"]["value"]) for one in rule["matches"]}
    assert routed in ({("Prefix", "/v1"), ("Exact", EXCHANGE_PATH)}, set())
    assert [path for path in PUBLIC_PATHS if path.startswith("/v1")] == []


def test_a_proxy_neither_buffers_nor_gives_up() -> None:
    (route,) = of_kind(DATA / "production", "HTTPRoute")
    assert route["spec"]["rules"][0]["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    (ingress,) = of_kind(DATA / "keda", "Ingress")
    annotations = ingress["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    ours = {name.removeprefix(prefix): value for name, value in annotations.items()}
    assert ours["proxy-buffering"] == ours["proxy-request-buffering"] == "off"
    assert int(ours["proxy-read-timeout"]) >= 3600
    assert ours["proxy-body-size"] == "0"
    assert annotations["cert-manager.io/cluster-issuer"] == "public"


@of_every_case
def test_network_policies_deny_what_they_do_not_name(case: Path) -> None:
    policies = of_kind(case, "NetworkPolicy")
    if not policies:
        return
    for pod, _ in pods(case):
        chosen = [one["spec"] for one in policies if matches(one["spec"]["podSelector"], pod)]
        assert any(sorted(one["policyTypes"]) == ["Egress", "Ingress"] for one in chosen)
    for policy in policies:
        for rule in policy["spec"].get("ingress", ()):
            assert rule["from"], "no peers are all peers"
            assert rule["ports"]
        for rule in policy["spec"].get("egress", ()):
            assert rule["to"], "no peers are all peers"
            assert rule["ports"]


def test_requests_metrics_and_operators_come_in_by_the_ports_of_the_pod() -> None:
    case = DATA / "production"
    ports = {one["containerPort"] for one in server(case)["ports"]}
    policies = of_kind(case, "NetworkPolicy")
    let_in = {
        port["port"]
        for policy in policies
        for rule in policy["spec"].get("ingress", ())
        for port in rule["ports"]
    }
    assert let_in == ports


def test_a_migration_by_hook_needs_nothing_that_comes_after_it() -> None:
    """Objects of the release are not there yet at the first installation."""
    for case in CASES:
        for job in of_kind(case, "Job"):
            (volume,) = job["spec"]["template"]["spec"]["volumes"]
            wanted = ("ExternalSecret", volume["secret"]["secretName"])
            for one in objects(case):
                if identity(one) == wanted:
                    assert is_hook(one)
                    assert weight(one) < weight(job)
                elif one["kind"] == "NetworkPolicy" and is_hook(one):
                    assert matches(one["spec"]["podSelector"], job["spec"]["template"])
                    assert weight(one) < weight(job)
            assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
            policy = job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
            assert policy == "before-hook-creation,hook-succeeded"
            assert "ttlSecondsAfterFinished" not in job["spec"]


def test_the_database_is_migrated_in_one_of_three_ways() -> None:
    ways = {}
    for case in CASES:
        migrating = [
            (one["kind"], container)
            for pod, one in pods(case)
            for container in containers(pod)
            if container["name"] == "migrate"
        ]
        ((kind, container),) = migrating
        assert container["args"] == ["db", "upgrade"]
        assert environment(container).keys() == {"DATABASE_URL_FILE"}
        ways[case.name] = kind
    assert ways == {
        "minimal": "Job",
        "production": "Job",
        "keda": "Job",
        "manual": "CronJob",
        "gitops": "Deployment",
    }
    (by_hand,) = of_kind(DATA / "manual", "CronJob")
    assert by_hand["spec"]["suspend"] is True


def test_maintenance_is_hourly_and_what_was_deleted_goes_daily() -> None:
    jobs = {one["spec"]["schedule"]: one for one in of_kind(DATA / "minimal", "CronJob")}
    done = {
        schedule: containers(one["spec"]["jobTemplate"]["spec"]["template"])[0]["args"]
        for schedule, one in jobs.items()
    }
    assert done == {"17 * * * *": ["db", "maintain"], "43 3 * * *": ["data", "purge"]}
    assert {one["spec"]["concurrencyPolicy"] for one in jobs.values()} == {"Forbid"}


def test_a_changed_configuration_replaces_the_pods() -> None:
    sums = {
        deployment(case)["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for case in CASES
    }
    assert len(sums) == len(CASES)


def test_the_chart_has_the_version_of_the_gateway() -> None:
    described = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (described["version"], described["appVersion"]) == (__version__, __version__)
    assert described["kubeVersion"] == f">={KUBERNETES[0]}.0-0"


EXAMPLE = CHART / "examples" / "vllm.yaml"
ENGINES: dict[str, Object] = {
    one["kind"]: one for one in yaml.safe_load_all(EXAMPLE.read_text("utf-8"))
}


@pytest.mark.slow
def test_kubernetes_takes_the_example_of_engines() -> None:
    for one in ENGINES.values():
        for version in KUBERNETES:
            kubernetes_validate.validate(one, version, strict=True)


def test_a_gateway_finds_the_engines_of_the_example(tmp_path: Path) -> None:
    case = DATA / "production"
    (source,) = settings(case, server(case), tmp_path).discovery
    assert source.host is not None
    assert f"{{name: vllm, kind: {source.kind}, host: {source.host}}}" in EXAMPLE.read_text("utf-8")
    port_label, _, name, rest = source.host.split(".", 3)
    service, engines = ENGINES["Service"], ENGINES["StatefulSet"]["spec"]
    assert rest == f"{service['metadata']['namespace']}.svc.cluster.local"
    assert service["metadata"]["name"] == engines["serviceName"] == name
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == engines["template"]["metadata"]["labels"]
    (port,), (container,) = service["spec"]["ports"], containers(engines["template"])
    assert port_label == f"_{port['name']}"
    assert [one["containerPort"] for one in container["ports"]] == [port["port"]]


def test_only_the_gateway_reaches_the_engines_of_the_example() -> None:
    policy = ENGINES["NetworkPolicy"]["spec"]
    assert matches(policy["podSelector"], ENGINES["StatefulSet"]["spec"]["template"])
    ((rule,),) = [policy["ingress"]]
    (source,) = rule["from"]
    for pod, one in pods(DATA / "production"):
        assert matches(source["podSelector"], pod) is (one["kind"] == "Deployment")


def test_the_engines_of_the_example_may_end_their_streams() -> None:
    engines = ENGINES["StatefulSet"]["spec"]["template"]
    (option,) = (one for one in containers(engines)[0]["command"] if "--shutdown-timeout=" in one)
    shutdown_s = int(option.partition("=")[2])
    assert engines["spec"]["terminationGracePeriodSeconds"] > shutdown_s >= Membership().leave_s


VALUES_SCHEMA: Object = json.loads(SCHEMA.read_text("utf-8"))
VALUES = jsonschema.Draft7Validator(VALUES_SCHEMA)


def test_the_schema_has_the_settings_of_this_release() -> None:
    assert with_settings(VALUES_SCHEMA) == VALUES_SCHEMA, "run `make chart-schema`"


def test_the_schema_knows_every_key() -> None:
    """But those that Kubernetes or a chat template defines, and maps of names to texts."""
    open_ = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and node.get("additionalProperties", True) is True:
                open_.append(path)
            for key, value in node.items():
                walk(value, f"{path}/{key}")
        elif isinstance(node, list):
            for index, value in enumerate(node):
                walk(value, f"{path}/{index}")

    walk(VALUES_SCHEMA, "")
    assert open_ == [
        "/definitions/Kubernetes",
        f"/definitions/{PREFIX}Model/properties/chat_template_kwargs",
    ]


def test_every_value_has_a_default_and_every_default_is_allowed() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    jsonschema.Draft7Validator.check_schema(VALUES_SCHEMA)
    VALUES.validate(values)
    assert missing(VALUES_SCHEMA, values, "") == ["global"]


@of_every_case
def test_the_schema_takes_the_values_of_every_case(case: Path) -> None:
    VALUES.validate(yaml.safe_load((case / "values.yaml").read_text("utf-8")))


def test_every_value_is_used_by_a_template() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    del values["config"]  # as it is
    templates = [path for path in (CHART / "templates").rglob("*") if path.is_file()]
    text = "\n".join(path.read_text("utf-8") for path in templates)
    maps = {"resources", "serving", "owner", "labels", "timeouts"}

    def keys(node: Object) -> Iterator[str]:
        for key, inner in node.items():
            yield key
            if isinstance(inner, dict) and key not in maps:
                yield from keys(inner)

    assert [key for key in keys(values) if not re.search(rf"\.{key}\b", text)] == []


def missing(schema: Object, values: Any, path: str) -> list[str]:
    """Keys of the schema that values.yaml does not have, but within maps and lists."""
    found = []
    for key, inner in schema.get("properties", {}).items():
        if key not in values:
            found.append(path + key)
        else:
            found += missing(inner, values[key], f"{path}{key}.")
    return found


@each(
    "value",
    [
        {"replicas": "x"},
        {"replicaCount": 3},
        {"config": {"server": {"drain_grace": 5}}},
        {"config": {"server": {"port": 80}}},
        {"config": {"database": {"url": "postgresql://gateway@db/gateway"}}},
        {"config": {"backends": [{"name": "a", "url": "http://a", "api_key": "secret"}]}},
        {"env": {"GATEWAY_AUTH__KEY_PEPPER": "secret"}},
        {"secret": {"serving": {"DATABASE_URL": "postgresql://gateway:secret@db/gateway"}}},
        {"networkPolicy": {"clients": [{}]}},
        {"networkPolicy": {"clients": [{"podSelektor": {}}]}},
        {"image": {"digest": "sha256:12"}},
        {"resources": {"request": {"cpu": "1"}}},
    ],
)
def test_the_schema_refuses(value: Object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALUES.validate(value)
