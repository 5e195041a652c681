"""The Dockerfile, the compose file and the roles agree with each other and with the settings.

`make test-deploy` runs them; this is what can be seen without containers.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import yaml

from gateway import __version__
from gateway.settings import load_settings
from gateway.settings.loading import FILE_SUFFIX
from gateway.settings.reference import rows
from gateway.store.schema import APP_ROLE, RUNS_ROLE
from tests.fakes.cases import each

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
ROLES = (DEPLOY / "roles.sql").read_text("utf-8")
PAGE = (ROOT / "docs" / "deploy.md").read_text("utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", PAGE.replace("\\\n", " "), re.MULTILINE)
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
MONITORING = {name for name in SERVICES if SERVICES[name].get("profiles") == ["observability"]}
OF_OTHERS = {"postgres", "proxy", *MONITORING}
REPLICAS = ("gateway-1", "gateway-2")
OURS = sorted(SERVICES.keys() - OF_OTHERS)
GATEWAY = SERVICES["gateway-1"]
BY_DIGEST = re.compile(r"[a-z/-]+:[\w.-]+@sha256:[0-9a-f]{64}")
SECRETS_FOLDER = "/run/secrets/"


def instructions(name: str) -> list[str]:
    """What follows each instruction of that name, with its continuation lines."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def made_secrets(folder: Path) -> dict[str, str]:
    subprocess.run([DEPLOY / "make-secrets.sh", folder], check=True)
    return {path.name: path.read_text("ascii") for path in folder.iterdir()}


def test_every_stage_begins_with_an_image_by_its_digest() -> None:
    (image,) = re.findall(r"PYTHON_IMAGE=(\S+)", "\n".join(instructions("ARG")))
    assert BY_DIGEST.fullmatch(image)
    assert [line.split()[0] for line in instructions("FROM")] == ["${PYTHON_IMAGE}"] * 2
    for name in OF_OTHERS:
        (image,) = re.findall(r"\$\{[A-Z_]+_IMAGE:-(.*)\}", SERVICES[name]["image"])
        assert BY_DIGEST.fullmatch(image)


def test_everything_that_is_installed_has_a_hash_or_was_built_here() -> None:
    installs = re.findall(r"pip\S*( .*?install .*?)(?=&&|$)", " ".join(instructions("RUN")))
    assert len(installs) == 4
    assert [one for one in installs if not re.search("--require-hashes|--no-index", one)] == []


def test_the_image_has_a_user_who_is_a_number_and_not_root() -> None:
    (user,) = instructions("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_a_build_sees_what_it_copies_and_no_more() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    seen = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    here = [line.split() for line in instructions("COPY") if not line.startswith("--from")]
    copied = {name for words in here for name in words[:-1]}
    assert "*" in ignored
    assert seen == copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_image_has_the_version_of_the_package() -> None:
    assert f"VERSION={__version__}" in instructions("ARG")


def test_the_replicas_are_alike_and_behind_the_proxy() -> None:
    first, second = (SERVICES[name] for name in REPLICAS)
    assert first == second
    asked = SERVICES["proxy"]["environment"]
    assert [asked["GATEWAY_1"], asked["GATEWAY_2"]] == [f"{name}:8000" for name in REPLICAS]
    assert [asked["CONSOLE_1"], asked["CONSOLE_2"]] == [f"{name}:9000" for name in REPLICAS]
    for file in SERVICES["proxy"]["volumes"]:
        here, there, _ = file.split(":")
        assert (DEPLOY / here).is_file()
        assert there in SERVICES["proxy"]["command"]


def test_only_the_proxy_publishes_a_port_and_it_is_the_one_the_gateway_listens_on() -> None:
    published = [name for name, service in SERVICES.items() if "ports" in service]
    assert published == ["proxy", "grafana"]
    assert COMPOSE["networks"]["backends"] == {"internal": True}
    assert COMPOSE["networks"]["database"] == {"internal": True}
    assert SERVICES["simulator"]["networks"] == ["backends"]
    port = str(load_settings(environ={}).server.port)
    published, console = SERVICES["proxy"]["ports"]
    assert console == "${CONSOLE_PUBLISHED:-127.0.0.1:9000}:9000"
    assert GATEWAY["environment"]["GATEWAY_ADMIN__PORT"] == "9000"
    assert SERVICES["proxy"]["environment"]["PORT"] == port
    assert published == f"${{GATEWAY_PUBLISHED:-127.0.0.1:{port}}}:{port}"
    assert instructions("EXPOSE") == [port]
    assert f":{port}/readyz" in " ".join(GATEWAY["healthcheck"]["test"])


@each("name", sorted(SERVICES))
def test_a_service_can_do_little_and_take_little(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert "privileged" not in service


def test_commands_of_the_page_name_services_that_exist() -> None:
    of_services = re.compile(r"docker compose (run|exec|build|up) (?:-\S+ )*([^#]+)")
    named = [match for line in COMMANDS if (match := of_services.match(line))]
    assert len(named) > 10
    for match in named:
        words = match[2].split()
        services = words[:1] if match[1] in {"run", "exec"} else words
        assert {one for one in services if not one.startswith("-")} <= SERVICES.keys(), match[0]


def test_the_page_removes_secrets_without_a_question_that_eats_the_next_line() -> None:
    removed = [line.split() for line in COMMANDS if line.startswith("rm ")]
    assert len(removed) == 2
    assert {words[1] for words in removed} == {"-f"}


def test_a_restore_waits_for_the_server() -> None:
    restore = next(at for at, line in enumerate(COMMANDS) if "pg_restore" in line)
    assert COMMANDS[restore - 1] == "docker compose up --detach --wait postgres"


def test_the_page_starts_every_service_where_nothing_waits_for_health() -> None:
    (told,) = re.findall(r"Podman 4\.3 does not wait.*?\n\n", PAGE, re.DOTALL)
    started = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert {word for word in re.findall(r"`([\w-]+)`", told) if word in SERVICES} == started


def test_the_gateway_has_a_place_for_large_uploads() -> None:
    assert GATEWAY["read_only"] is True
    assert GATEWAY["tmpfs"] == ["/tmp"]


def test_the_container_waits_longer_than_the_drain() -> None:
    grace = GATEWAY["stop_grace_period"]
    notice = float(GATEWAY["environment"]["GATEWAY_SERVER__DRAIN_NOTICE_S"])
    assert int(grace.removesuffix("s")) > notice + load_settings(environ={}).server.drain_grace_s


def test_what_watches_is_apart_and_only_grafana_is_seen_from_outside() -> None:
    assert {"prometheus", "grafana", "otel-collector"} == MONITORING
    assert COMPOSE["networks"]["monitoring"] == {"internal": True}
    networks = {name: set(SERVICES[name]["networks"]) for name in MONITORING}
    assert networks["grafana"] == {"boards", "monitoring"}
    assert networks["prometheus"] == networks["otel-collector"] == {"public", "monitoring"}
    assert SERVICES["grafana"]["ports"] == ["${GRAFANA_PUBLISHED:-127.0.0.1:3000}:3000"]
    assert not any(MONITORING & set(SERVICES[name].get("depends_on", ())) for name in OURS)


def test_grafana_has_a_password_of_its_own_and_fetches_nothing(tmp_path: Path) -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"
    assert SERVICES["grafana"]["secrets"] == ["grafana_password"]
    assert len(made_secrets(tmp_path)["grafana_password"]) == 64
    assert environment["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"


def test_what_is_mounted_is_there_and_is_read_only() -> None:
    for name in MONITORING:
        files = [one.split(":") for one in SERVICES[name]["volumes"] if one.startswith("./")]
        assert files
        for source, _, mode in files:
            assert (DEPLOY / source).exists(), source
            assert mode == "ro"


def test_prometheus_scrapes_the_gateway_and_grafana_asks_prometheus() -> None:
    folder = DEPLOY / "observability"
    config = yaml.safe_load((folder / "prometheus.yaml").read_text("utf-8"))
    jobs = {one["job_name"]: one for one in config["scrape_configs"]}
    (found,) = jobs["gateway"]["dns_sd_configs"]
    assert found["names"] == ["gateway"]
    assert found["port"] == load_settings(environ={}).server.port
    ((target,),) = [one["targets"] for one in jobs["otel-collector"]["static_configs"]]
    collector = yaml.safe_load((folder / "otel-collector.yaml").read_text("utf-8"))
    port = collector["exporters"]["prometheus"]["endpoint"].rpartition(":")[2]
    assert target == f"otel-collector:{port}"
    mounted = {one.split(":")[1] for one in SERVICES["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in config["rule_files"]} <= mounted
    sources = yaml.safe_load((folder / "grafana/datasources/prometheus.yaml").read_text("utf-8"))
    (source,) = sources["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    boards = yaml.safe_load((folder / "grafana/dashboards/boards.yaml").read_text("utf-8"))
    (provider,) = boards["providers"]
    assert provider["options"]["path"] == "/etc/grafana/boards"


def test_every_exporter_of_the_collector_is_in_a_pipeline_and_the_other_way_round() -> None:
    file = DEPLOY / "observability" / "otel-collector.yaml"
    collector = yaml.safe_load(file.read_text("utf-8"))
    for kind in ("receivers", "processors", "exporters"):
        used = {name for one in collector["service"]["pipelines"].values() for name in one[kind]}
        assert used == collector[kind].keys()


def test_no_service_has_a_secret_in_its_environment() -> None:
    known = {row.name for row in rows()} | {"DATABASE_URL"}
    for service in (SERVICES[name] for name in OURS):
        environment = service.get("environment", {})
        read = {name: value for name, value in environment.items() if name.endswith(FILE_SUFFIX)}
        plain = environment.keys() - read.keys()
        assert plain <= {
            *("GATEWAY_MODELS", "GATEWAY_BACKENDS", "GATEWAY_SERVER__DRAIN_NOTICE_S"),
            *("GATEWAY_ADMIN__HOST", "GATEWAY_ADMIN__PORT"),
            *("GATEWAY_CONSOLE__ENABLED", "GATEWAY_CONSOLE__PUBLIC_URL"),
        }
        assert {name.removesuffix(FILE_SUFFIX) for name in read} | plain <= known
        assert sorted(read.values()) == sorted(
            SECRETS_FOLDER + secret for secret in service.get("secrets", [])
        )


def test_the_environment_in_the_compose_file_is_valid(tmp_path: Path) -> None:
    made_secrets(tmp_path)
    environ = {
        name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value).replace(SECRETS_FOLDER, f"{tmp_path}/")
        for name, value in GATEWAY["environment"].items()
    }
    settings = load_settings(environ=environ)
    assert [backend.url for backend in settings.backends] == ["http://simulator:8100"]
    assert settings.database_url.startswith("postgresql://harmony_gateway:")
    assert len(settings.pepper) == 64
    assert settings.console.public_url == "http://127.0.0.1:9000"


def test_what_serves_and_what_owns_the_tables_are_different_roles(tmp_path: Path) -> None:
    secrets = made_secrets(tmp_path)
    assert GATEWAY["secrets"] == ["serving_url", "key_pepper"]
    for name in ("migrate", "maintenance", "admin"):
        assert "owner_url" in SERVICES[name]["secrets"]
    for url, role in (("owner_url", "harmony_gateway_owner"), ("serving_url", "harmony_gateway")):
        password = secrets[url.replace("url", "password")]
        assert secrets[url] == f"postgresql://{role}:{password}@postgres:5432/gateway"
        assert f"ALTER ROLE {role}\n" in ROLES
    assert {APP_ROLE, RUNS_ROLE} <= set(re.findall(r"harmony_gateway_\w+", ROLES))


def test_the_owner_of_the_tables_does_what_the_gateway_may_not() -> None:
    (line,) = SERVICES["maintenance"]["command"]
    assert re.findall(r"harmony-gateway (\w+ \w+)", line) == ["db maintain", "data purge"]


def test_secrets_are_made_once_and_nobody_else_finds_them(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    secrets = made_secrets(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert secrets.keys() == COMPOSE["secrets"].keys()
    (folder / "serving_password").unlink()
    again = made_secrets(folder)
    changed = {name for name in secrets if secrets[name] != again[name]}
    assert changed == {"serving_password", "serving_url"}
    assert os.access(DEPLOY / "make-secrets.sh", os.X_OK)
