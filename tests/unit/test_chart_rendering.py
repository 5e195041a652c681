"""deploy/chart rendered by Helm: `make helm` installs it, and a machine's own one does."""

from __future__ import annotations

import json
import re
import tarfile
from typing import TYPE_CHECKING

import pytest
import yaml

from gateway.settings import load_settings
from scripts.chart.goldens import (
    CASES,
    CHART,
    DATA,
    HelmError,
    golden,
    helm,
    rendered,
    run,
    stage,
    text_of,
)
from tests.fakes.cases import each

if TYPE_CHECKING:
    from pathlib import Path

    from scripts.chart.goldens import Object

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(helm() is None, reason="there is no helm: `make helm` installs it"),
]

MINIMAL = ("--values", DATA / "minimal" / "values.yaml")
OBSERVABILITY = CHART.parent / "observability"
RELEASE_BYTES_MAX = 700_000
"""Helm keeps a release, packed and in base64, in a Secret, which may have 1 MiB."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_goldens_are_what_helm_renders(case: Path, tmp_path: Path) -> None:
    assert text_of(case, stage(tmp_path)) == golden(case), "run `make chart-render`"


def test_names_of_digits_are_texts_in_every_object() -> None:
    named = ("--set", "fullnameOverride=gw", "--set", "networkPolicy.enabled=false")
    production = ("--values", DATA / "production" / "values.yaml")
    text = run("template", "123", CHART, "--namespace", "456", *production, *named)
    for one in filter(None, yaml.safe_load_all(text)):
        metadata = one["metadata"]
        assert metadata["namespace"] == "456", one["kind"]
        assert metadata["labels"]["app.kubernetes.io/instance"] == "123", one["kind"]


def test_helm_has_nothing_to_say_against_the_chart() -> None:
    run("lint", "--strict", CHART, *MINIMAL)


@each(
    ("setting", "words"),
    [
        ("replicas=x", "replicas"),
        ("replicaCount=3", "replicaCount"),
        ("config.server.drain_grace=5", "drain_grace"),
        ("config.admin.port=70000", "port"),
        ("config.auth.key_pepper=0123456789abcdef", "key_pepper"),
        ("env.GATEWAY_SERVER__PORT=1", "GATEWAY_SERVER__PORT"),
        ("image.repository=", "image.repository is not set"),
        ("secret.name=", "secret.name is not set"),
        ("secret.external.enabled=true", "secret.external.remoteKey is not set"),
        ("terminationGracePeriodSeconds=129", "has to be 130 or more"),
        ("config.server.drain_grace_s=null", "drain_grace_s is not set"),
        ("networkPolicy.enabled=true", "networkPolicy.database.to is empty"),
        ("ingress.enabled=true", "ingress.hosts is empty"),
        ("httpRoute.enabled=true", "httpRoute.parentRefs is empty"),
        ("autoscaling.kind=keda", "autoscaling.keda.serverAddress is not set"),
        ("autoscaling.kind=vpa", "kind"),
        ("migrations.mode=later", "mode"),
    ],
)
def test_values_that_are_wrong_are_refused_with_their_name(setting: str, words: str) -> None:
    with pytest.raises(HelmError) as refusal:
        rendered(CHART, *MINIMAL, "--set", setting)
    assert words in str(refusal.value)


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def test_alerts_and_boards_of_the_repository_are_in_a_release() -> None:
    enabled = ("prometheusRule.enabled=true", "dashboards.enabled=true")
    sets = [word for one in enabled for word in ("--set", one)]
    objects = rendered(CHART, *MINIMAL, *sets)
    (rule,) = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((OBSERVABILITY / "rules.yaml").read_text("utf-8"))
    boards = sorted((OBSERVABILITY / "dashboards").glob("*.json"))
    maps = [one for one in of_kind(objects, "ConfigMap") if "gateway.yaml" not in one["data"]]
    assert {name: json.loads(text) for one in maps for name, text in one["data"].items()} == {
        board.name: json.loads(board.read_text("utf-8")) for board in boards
    }
    assert len(maps) == len(boards)


def test_the_values_of_the_readme_are_those_of_a_gateway_that_starts(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (CHART / "README.md").read_text("utf-8"), re.DOTALL)
    values = tmp_path / "values.yaml"
    values.write_text(block, "utf-8")
    objects = rendered(CHART, "--values", values)
    (config,) = of_kind(objects, "ConfigMap")
    file = tmp_path / "gateway.yaml"
    file.write_text(config["data"]["gateway.yaml"], "utf-8")
    (serving,) = of_kind(objects, "Deployment")
    (container,) = serving["spec"]["template"]["spec"]["containers"]
    files = {one["name"] for one in container["env"] if one["name"].endswith("_FILE")}
    secret = tmp_path / "secret"
    secret.write_text("postgresql://gateway@127.0.0.1/gateway", "utf-8")
    (backend,) = load_settings(file, environ=dict.fromkeys(files, str(secret))).backends
    assert backend.api_key is not None


def test_there_need_be_no_board(tmp_path: Path) -> None:
    chart = stage(tmp_path)
    for board in (chart / "files" / "observability" / "dashboards").iterdir():
        board.unlink()
    objects = rendered(chart, *MINIMAL, "--set", "dashboards.enabled=true")
    assert len(of_kind(objects, "ConfigMap")) == 1


def test_a_package_has_all_that_a_release_needs(tmp_path: Path) -> None:
    run("package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    assert package.stat().st_size < RELEASE_BYTES_MAX
    with tarfile.open(package) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert all(member.isfile() for member in archive.getmembers())
    needed = {
        path.relative_to(CHART).as_posix()
        for path in (*CHART.iterdir(), *(CHART / "templates").rglob("*"), *CHART.glob("files/*"))
        if path.is_file()
    }
    boards = {f"dashboards/{board.name}" for board in OBSERVABILITY.glob("dashboards/*.json")}
    linked = {f"files/observability/{name}" for name in {"rules.yaml", *boards}}
    assert needed | linked <= names
    assert [name for name in names if name.endswith(".test.yaml") or "examples" in name] == []
    assert rendered(package, *MINIMAL) == rendered(CHART, *MINIMAL)
