"""`support`: diagnostics without secrets, content and tenants' names.

Only selected data goes in; then every text is searched for the secrets of this installation.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections import deque
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import httpx2
import typer
from pydantic import BaseModel, SecretStr

from gateway import __version__
from gateway.cli import backends, terminal
from gateway.cli.command import Config, run
from gateway.cli.doctor import examine
from gateway.cli.provision import connected, new_file, provisioned
from gateway.errors import GatewayError, StartupError
from gateway.settings import Server, Settings, load_settings
from gateway.settings.http_urls import listener_url
from gateway.settings.loading import sources, variable_names, variables
from gateway.store import tenants
from gateway.store.diagnostics import server_facts, server_report
from gateway.store.migration.verification import missing
from gateway.store.schema import REVISION
from gateway.telemetry.logs import Fields
from gateway.upstreams.http.client import build_client
from gateway.upstreams.pool import DESCRIBE_TIMEOUT_S
from gateway.upstreams.probe import describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.http.client import Client

commands = typer.Typer(no_args_is_help=True)

METRICS_TIMEOUT_S: Final = 10.0
SECRET_CHARS_MIN: Final = 4
"""A shorter one would be found in every text."""
_GONE: Final = "[removed]"
_TENANT: Final = re.compile(r'(\btenant"?\s*[=:]\s*")[^"]*')
"""Label of a metric or field of a log line."""
_LITERAL: Final = re.compile(r"true|false|null|[0-9][0-9.]*(?:[eE]-?[0-9]+)?")
"""Names that JSON also has without quotes."""
_LOGGED: Final = frozenset(
    {*Fields.__annotations__, "event", "level", "timestamp", "logger", "stack"}
) - {"client", "client_request_id"}
"""Without the two that clients fill."""
_SECRETS: Final = re.compile(
    r"(?<=://)[^/\s@\"]+(?=@)|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]+"
    r"|\b(?:sk|whsec|hvs)[-_.][\w-]{8,}"
)
"""Credentials in a URL, in a header, or with the prefix of a kind of key."""


@commands.command("bundle")
def bundle(
    path: Annotated[
        Path, typer.Argument(help="The new file, such as support.tar.gz.", metavar="FILE")
    ],
    config: Config = None,
    log: Annotated[
        Path | None, typer.Option(help="Log of a gateway, JSON lines: its end is packed.")
    ] = None,
    lines: Annotated[int, typer.Option(min=1, help="Lines of the log, at most.")] = 2_000,
    metrics_url: Annotated[
        str | None, typer.Option(help="Metrics of a gateway. Default: of the one configured here.")
    ] = None,
    tenant_names: Annotated[
        bool, typer.Option("--tenant-names", help="Leave names of tenants as they are.")
    ] = False,
) -> None:
    """Pack settings and where they come from, versions, what doctor finds, metrics, the end of a
    log, the schema, PostgreSQL's settings, sizes of tables, slow statements, and backends.

    Without secrets, content and names of tenants. Look at it before you send it.
    """
    if os.path.lexists(path):
        raise StartupError(f"{path} exists already", remedy="Name another file.")
    parts = run(_collected(config, log, lines, metrics_url, tenant_names=tenant_names))
    try:
        _pack(path, parts)
    except OSError as error:
        why = f"cannot write {path}: {error.strerror}"
        raise StartupError(why, remedy="Name another file.") from error
    for name, text in parts.items():
        terminal.step(terminal.OK, name, f"{len(text)} characters")
    terminal.show(f"{path}: look at it before you send it")


def _pack(path: Path, parts: Mapping[str, str]) -> None:
    with new_file(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in parts.items():
            data = text.encode()
            member = tarfile.TarInfo(f"support/{name}")
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(data))


async def _collected(
    config: Path | None,
    log: Path | None,
    lines: int,
    metrics_url: str | None,
    *,
    tenant_names: bool,
) -> dict[str, str]:
    # Name and text of each part; one that cannot be made says why.
    parts = {"versions.json": _json(_versions())}
    if log is not None:
        parts["log.jsonl"] = _end_of_log(log, lines)
    findings = await examine(config)
    parts["doctor.json"] = _json([finding.json for finding in findings])
    try:
        settings = load_settings(config)
    except StartupError as error:
        parts["settings.json"] = _json({"error": str(error)})
        redactor = Redactor((), {}, keeps_tenants=tenant_names)
        return {name: redactor.redacted(text) for name, text in parts.items()}
    parts["settings.json"] = _json(_settings(settings, config))
    names: dict[str, str] = {}

    async def database() -> object:
        async with provisioned(settings) as complete, connected(complete) as opened:
            every_tenant = await tenants.all_tenants(opened)
            names.update({one.name: f"tenant {one.id}" for one in every_tenant})
            return {
                "revision": await opened.revision(),
                "needed": REVISION,
                "missing": [str(one.text) for one in await missing(opened)],
                "facts": (await server_facts(opened))._asdict(),
                **await server_report(opened),
            }

    parts["database.json"] = _json(await _tried(database))
    async with build_client() as client:
        parts["backends.json"] = _json(await _tried(lambda: _backends(settings, client)))
        metrics = await _tried(lambda: _metrics(metrics_url, settings.server, client))
        parts["metrics.txt"] = str(metrics)
    redactor = Redactor(
        configured_secrets(settings),
        {} if tenant_names else names,
        keeps_tenants=tenant_names or bool(names),
    )
    return {name: redactor.redacted(text) for name, text in parts.items()}


async def _tried(make: Callable[[], Awaitable[object]]) -> object:
    try:
        return await make()
    except (GatewayError, OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _json(value: object) -> str:
    return json.dumps(value, indent=1, default=str)


def _versions() -> dict[str, Any]:
    packages = {one.metadata["Name"]: one.version for one in distributions()}
    return {
        "harmony-gateway": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
        "cpus": os.cpu_count(),
    }


def _settings(settings: Settings, config: Path | None) -> dict[str, Any]:
    # With the names of variables that are set, of which some may mean something else.
    places = sources(config)
    shown = {}
    for variable in variables(Settings):
        name, value = ".".join(variable.path), settings
        for key in variable.path:
            value = getattr(value, key)
        shown[name] = {"value": safe(value), "source": places.get(name, "default")}
    return {"settings": shown, "variables": variable_names()}


def safe(value: object) -> object:
    """Return a setting without what may be secret: of a URL its host, of a mapping its size."""
    if isinstance(value, SecretStr):
        return "[set]"
    if isinstance(value, BaseModel):
        return {name: safe(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return f"[{len(value)} entries]"
    if isinstance(value, (tuple, list)):
        return [safe(one) for one in value]
    if isinstance(value, str) and "://" in value:
        scheme, host, _ = _url_parts(value)
        return f"{scheme}://{host}"
    return str(value) if isinstance(value, Path) else value


def configured_secrets(value: object) -> Iterator[str]:
    """Yield every secret of the settings, and the passwords and paths of their URLs."""
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        yield text
        # Not with `urlsplit`: it refuses a URL whose password is not encoded.
        credentials = text.partition("://")[2].rpartition("@")[0]
        yield credentials.partition(":")[2]
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from configured_secrets(getattr(value, name))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from configured_secrets(one)
    elif isinstance(value, str) and "://" in value:
        path, _, query = _url_parts(value)[2].partition("#")[0].partition("?")
        yield from (path.strip("/"), query) if path.strip("/").count("/") else ()


def _url_parts(text: str) -> tuple[str, str, str]:
    # Scheme, host with its port, and the rest. `urlsplit` refuses a text with an open bracket.
    scheme, _, rest = text.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return scheme, authority.rpartition("@")[2], rest[len(authority) :]


def _end_of_log(path: Path, lines_max: int) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            last = deque(file, maxlen=lines_max)
    except OSError as error:
        return _json({"error": f"cannot read the log: {error.strerror}"})
    return "\n".join(map(_logged, last))


def _logged(line: str) -> str:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        return '{"event": "a line that is no JSON was left out"}'
    return json.dumps({name: value for name, value in fields.items() if name in _LOGGED})


async def _backends(settings: Settings, client: Client) -> object:
    members = await backends.current_members(settings)

    async def described(backend: Backend) -> object:
        async def ask() -> object:
            description = await describe(client, backend, timeout_s=DESCRIBE_TIMEOUT_S)
            models = {name: one.context_length for name, one in description.models.items()}
            return {
                "url": safe(backend.base_url),
                "engine": str(description.engine),
                "models": models,
            }

        return await _tried(ask)

    descriptions = {name: await described(one) for name, one in members.backends.items()}
    return {"backends": descriptions, "faults": members.faults}


async def _metrics(url: str | None, server: Server, client: Client) -> str:
    address = url or f"{listener_url(server.host, server.port)}/metrics"
    answer = await client.get(address, timeout=METRICS_TIMEOUT_S)
    return answer.text if answer.status_code == 200 else f"GET /metrics: {answer.status_code}"


class Redactor:
    """Filter of secrets, known ones and what looks like one.

    Words of `names` are replaced by what they map to. Without `keeps_tenants` (the database is
    away) every value that is called a tenant is removed.
    """

    def __init__(
        self,
        secrets: Iterator[str] | tuple[str, ...],
        names: Mapping[str, str],
        *,
        keeps_tenants: bool = True,
    ) -> None:
        self._keeps_tenants = keeps_tenants
        long = {one for one in secrets if len(one) >= SECRET_CHARS_MIN}
        spelled = {
            form for one in long for form in (one, quote(one, safe=""), json.dumps(one)[1:-1])
        }
        words = sorted(map(re.escape, spelled), key=len, reverse=True)
        self._secrets = re.compile("|".join(words)) if words else None
        self._names = names
        named = "|".join(map(_word, sorted(names, key=len, reverse=True)))
        before = r"(?:(?<!\w)|(?<=\\[bfnrt]))"  # a new line is written as two characters
        self._named = re.compile(rf"{before}(?:{named})(?!\w)") if names else None

    def redacted(self, text: str) -> str:
        if self._secrets is not None:
            text = self._secrets.sub(_GONE, text)
        text = _SECRETS.sub(_GONE, text)
        if not self._keeps_tenants:
            text = _TENANT.sub(rf"\1{_GONE}", text)
        if self._named is not None:
            text = self._named.sub(lambda match: self._names[match[0]], text)
        return text


def _word(name: str) -> str:
    word = re.escape(name)
    return rf'(?<="){word}(?=")' if _LITERAL.fullmatch(name) else word
