"""What `doctor` finds around a gateway: server, clocks, connections, TLS, listeners, proxies."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from typing_extensions import override

from gateway.cli.backend_checks import engine_findings
from gateway.cli.deployment_checks import clock_finding, encryption_finding, stream_finding
from gateway.cli.doctor import examine
from gateway.store.diagnostics import (
    Endpoint,
    ServerFacts,
    certificate_expiry,
    endpoint,
    server_facts,
)
from gateway.store.limits import counters
from gateway.store.limits.counters import SyncRequest
from gateway.store.postgres.statements import Statement
from gateway.upstreams.backend import Backend
from gateway.upstreams.engines import SGLang, UnknownEngine, Vllm
from gateway.upstreams.http.client import build_client
from tests.conftest import opened
from tests.fakes.certificate import self_signed
from tests.fakes.gateway import PEPPER, gateway_settings, new_key
from tests.fakes.logins import SERVING, make_roles
from tests.fakes.pooler import pooler
from tests.fakes.processes import gateway_process, reserved_port, simulator_process
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from starlette.requests import Request

    from gateway.cli.findings import Finding
    from gateway.upstreams.engines import InferenceEngine

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("GATEWAY_AUTH__KEY_PEPPER", PEPPER)


async def found(name: str, **options: Any) -> list[Finding]:
    return [finding for finding in await examine(None, **options) if finding.name == name]


async def found_of_a_backend(
    name: str, options: WaywardOptions, monkeypatch: pytest.MonkeyPatch, **backend: Any
) -> list[Finding]:
    async with serving(create_simulator(options)) as url:
        backends = [{"name": "gpu", "url": url, **backend}]
        monkeypatch.setenv("GATEWAY_BACKENDS", json.dumps(backends))
        return await found(name)


async def test_a_superuser_that_serves_is_warned_of_and_a_role_of_its_own_is_not(
    database_url: str, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = await found("roles")
    assert (finding.level, "is a superuser" in finding.detail) == ("warning", True)
    assert "deploy/roles.sql" in finding.remedy
    make_roles(database_url)
    name = database_url.partition("?")[0].rpartition("/")[2]
    monkeypatch.setenv("DATABASE_URL", postgres.database_url(name, user=SERVING))
    (finding,) = await found("roles")
    assert (finding.level, finding.detail.partition(";")[0]) == ("ok", f"signs in as {SERVING}")


async def test_roles_of_tenants_that_may_more_are_an_error(postgres: Any) -> None:
    await postgres.execute("ALTER ROLE harmony_gateway_app BYPASSRLS")
    try:
        (finding,) = await found("roles")
    finally:
        await postgres.execute("ALTER ROLE harmony_gateway_app NOBYPASSRLS")
    assert finding.level == "error"


async def test_more_connections_than_the_server_allows_are_found() -> None:
    (finding,) = await found("connections")
    assert finding.level == "ok"
    assert finding.detail.startswith("17 for each replica of ")
    (finding,) = await found("connections", replicas=20)
    assert finding.level == "error"
    assert "20 replicas with 17 each: 340 of " in finding.detail
    assert "database.pool_size_max to 7 or less" in finding.remedy


async def test_replicas_are_counted_by_a_login_that_row_level_security_binds(
    database_url: str, postgres: Any
) -> None:
    async with opened(database_url) as database:
        for replica in ("one", "other"):
            await counters.exchange(database, replica, SyncRequest(), is_round=True)
        async with database.runs_transaction() as connection:
            await connection.execute(
                Statement("UPDATE limit_reports SET at = now() + interval '1 hour'")
            )
    make_roles(database_url)
    name = database_url.partition("?")[0].rpartition("/")[2]
    async with opened(postgres.database_url(name, user=SERVING)) as database:
        assert (await server_facts(database)).replicas == 2


async def test_listen_through_a_transaction_pooler_is_found(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pooler(database_url) as between:
        monkeypatch.setenv("DATABASE_URL", between.url)
        (finding,) = await found("connections")
        assert (finding.level, "listen_url" in finding.remedy) == ("error", True)
        monkeypatch.setenv("GATEWAY_DATABASE__LISTEN_URL", database_url)
        (finding,) = await found("connections")
        assert (finding.level, "max_client_conn" in finding.detail) == ("ok", True)
        (finding,) = await found("tls")
        assert "is not encrypted" in finding.detail


async def test_a_certificate_of_postgres_is_read_from_its_server(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path, "127.0.0.1"))
    answers = [b"S", b"N"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
        word = answers.pop(0)
        writer.write(word)
        if word == b"S":
            await writer.start_tls(context)
            await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        host, port = server.sockets[0].getsockname()
        expiry = await certificate_expiry(host, port)
        assert expiry is not None
        assert timedelta(0) < expiry - datetime.now(UTC) <= timedelta(days=1)
        assert await certificate_expiry(host, port) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://u:p@db.internal/d?sslmode=verify-full",
            ("db.internal", 5432, "verify-full"),
        ),
        ("postgresql://u:p@db:6432/d", ("db", 6432, "prefer")),
        ("postgresql://u@[::1]:6432/d", ("::1", 6432, "prefer")),
        ("postgresql://u@a:1,b:2/d", ("a", 1, "prefer")),
        ("postgresql:///d?host=/run/postgresql&port=7", (None, 7, "prefer")),
        ("postgresql://u@/d?host=db", ("db", 5432, "prefer")),
    ],
)
def test_the_server_of_a_url_is_found(url: str, expected: tuple[Any, ...]) -> None:
    assert endpoint(url) == Endpoint(*expected)


@pytest.mark.parametrize(
    ("sslmode", "is_encrypted", "is_direct", "words"),
    [
        ("verify-full", True, True, "verify-full"),
        ("verify-ca", True, True, "who is between could be the database"),
        ("require", True, True, "who is between could be the database"),
        ("prefer", False, True, "is not encrypted"),
        ("require", False, False, "who is between could be the database"),
        ("prefer", False, False, "is not encrypted"),
    ],
)
def test_who_could_read_along_is_told(
    sslmode: str, is_encrypted: bool, is_direct: bool, words: str
) -> None:
    facts = ServerFacts(
        *(0.0, "18.0", "gateway", "owner", False, False, False, 97, 1, -1, -1),
        is_encrypted=is_encrypted,
        replicas=1,
        is_direct=is_direct,
    )
    finding = encryption_finding("db.internal", sslmode, facts)
    assert finding.detail.endswith(words)
    assert ("sslmode=verify-full" in finding.remedy) == (sslmode != "verify-full")
    assert not encryption_finding("127.0.0.1", sslmode, facts).remedy


class AMinuteAhead(BaseHTTPRequestHandler):
    """A backend whose clock is wrong."""

    @override
    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(datetime.now(UTC).timestamp() + 60)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        row = {"id": "m", "object": "model", "max_model_len": 4096}
        self.wfile.write(json.dumps({"object": "list", "data": [row]}).encode())

    @override
    def log_message(self, *_: object) -> None:
        pass


def test_clocks_that_differ_are_found() -> None:
    assert clock_finding("clock", "its clock", -1.9).ok
    finding = clock_finding("clock", "PostgreSQL's", -60)
    assert (finding.ok, finding.detail) == (False, "PostgreSQL's is 60 s behind this one")


async def test_a_backend_with_another_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), AMinuteAhead) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            async with build_client() as client:
                backend = Backend("gpu", url, {})
                (finding,) = await engine_findings(backend, UnknownEngine(), None, client)
        finally:
            server.shutdown()
            thread.join()
    assert not finding.ok
    assert finding.detail == "its clock is 60 s ahead of this one"


async def test_a_vllm_that_does_not_tell_what_it_cached_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not await found_of_a_backend("engine gpu", WaywardOptions(), monkeypatch)
    silent = WaywardOptions(report_cached_tokens=False)
    (finding,) = await found_of_a_backend("engine gpu", silent, monkeypatch)
    assert (finding.level, "--enable-prompt-tokens-details" in finding.remedy) == ("warning", True)


async def without_priorities(request: Request) -> JSONResponse:
    """As a vLLM without --scheduling-policy priority answers."""
    if request.method == "GET":
        return JSONResponse({"version": "0.32.0"})
    if "priority" in await request.json():
        return JSONResponse({"error": {"message": "Got priority 1 but …"}}, 400)
    return JSONResponse({"usage": {"prompt_tokens_details": {"cached_tokens": 112}}})


async def test_a_vllm_that_takes_no_priorities_is_found_where_it_should() -> None:
    routes = [
        Route("/v1/completions", without_priorities, methods=["POST"]),
        Route("/v1/models", without_priorities),
    ]
    async with serving(Starlette(routes=routes)) as url, build_client() as client:
        for priorities, levels in ((True, ["error"]), (False, [])):
            backend = Backend("gpu", url, {}, priorities=priorities)
            found = await engine_findings(backend, Vllm("0.32.0"), "m", client)
            assert [one.level for one in found if one.name == "engine gpu"] == levels


async def test_flags_that_an_sglang_was_started_without_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = WaywardOptions(engine="sglang", report_cached_tokens=False, priorities=False)
    one, two = await found_of_a_backend("engine gpu", options, monkeypatch, priorities=True)
    assert (one.level, "--enable-priority-scheduling" in one.remedy) == ("error", True)
    assert (two.level, "--enable-cache-report" in two.remedy) == ("warning", True)


@pytest.mark.parametrize("engine", [Vllm("0.32.0"), SGLang("0.5.14")])
@pytest.mark.parametrize("body", ["[]", "7", '{"usage": 7}', '{"usage": []}', "x", ""])
async def test_a_backend_whose_answers_are_of_another_form_is_looked_at_to_the_end(
    engine: InferenceEngine, body: str
) -> None:
    async def answer(_: Request) -> Response:
        return Response(body)

    async with (
        serving(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as url,
        build_client() as client,
    ):
        found = await engine_findings(Backend("gpu", url, {}), engine, "m", client)
    assert all(one.ok for one in found)


async def _cut(request: Request) -> Response:
    # As a proxy without patience: each answer breaks off.
    if request.url.path == "/v1/models":
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def begin() -> AsyncIterator[bytes]:
        yield b'data: {"type": "response.created"}\n\n'
        raise ConnectionResetError

    return StreamingResponse(begin(), media_type="text/event-stream")


async def test_a_proxy_that_cuts_streams_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Starlette(routes=[Route("/{path:path}", _cut, methods=["GET", "POST"])])
    async with serving(app) as url:
        (finding,) = await found("proxy", through=url, api_key="sk-of-nobody")
        assert (finding.ok, "a stream through it fails" in finding.detail) == (False, True)
        (finding,) = await found("proxy", through=url, api_key="schlüssel")
        assert (finding.ok, "--key" in finding.remedy) == (False, True)


async def test_an_address_of_a_proxy_that_is_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_ADMIN__HOST", "0.0.0.0")
    monkeypatch.setenv("GATEWAY_ADMIN__PORT", "9")
    for through in ("http://[x", "http://::1:80", "", "gateway.example"):
        *_, finding = await found("proxy", through=through, api_key="sk-of-nobody")
        assert not finding.ok


async def test_an_admin_port_that_others_reach_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not await found("admin port")
    with reserved_port() as port:
        monkeypatch.setenv("GATEWAY_ADMIN__PORT", str(port))
        (finding,) = await found("admin port")
        assert finding.level == "ok"
        monkeypatch.setenv("GATEWAY_ADMIN__HOST", "0.0.0.0")
        (finding,) = await found("admin port")
        assert finding.level == "warning"
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("GATEWAY_ADMIN__PORT", str(port))
        _, finding = await found("admin port", through="http://127.0.0.1:1")
        assert finding.level == "error"


STEADY = [0.5 + 0.02 * step for step in range(100)]


@pytest.mark.parametrize(
    ("times", "level"),
    [
        (STEADY, "ok"),
        ([0.5 + 0.002 * step for step in range(200)], "ok"),
        ([3.0 + 0.0001 * step for step in range(200)], "error"),
        ([0.5 * (step // 10) + 0.0001 * step for step in range(10, 200)], "error"),
        (STEADY[:20], "warning"),
        ([0.2] * 20, "warning"),
        ([], "warning"),
    ],
    ids=["steady", "fast", "all at the end", "in lumps", "too few", "too few at once", "none"],
)
def test_events_that_were_held_back_are_told_from_those_that_were_not(
    times: list[float], level: str
) -> None:
    assert stream_finding(times).level == level


NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {url};
            proxy_http_version 1.1;
            {more}
        }}
    }}
}}
"""
WRONG = (
    "proxy_ignore_headers X-Accel-Buffering; gzip on; gzip_proxied any; "
    "gzip_types text/event-stream; gzip_min_length 0;"
)
"""nginx keeps what it compresses until there is enough of it."""
RIGHT = (
    "proxy_buffering off; proxy_set_header Upgrade $http_upgrade; "
    'proxy_set_header Connection "upgrade"; } location ~ ^/(metrics|readyz)$ { return 404;'
)


@contextmanager
def nginx(folder: Path, url: str, more: str) -> Iterator[str]:
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if shutil.which(program) is None:
        pytest.skip("nginx is not installed")
    with reserved_port() as port:
        path = folder / "nginx.conf"
        path.write_text(NGINX.format(folder=folder, port=port, url=url, more=more))
    process = subprocess.Popen([program, "-c", str(path), "-e", str(folder / "error.log")])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


async def until_listening(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                await writer.wait_closed()
                return


async def test_a_proxy_that_buffers_and_does_not_upgrade_is_told_from_one_that_is_right(
    tmp_path: Path, database_url: str
) -> None:
    key = await new_key(gateway_settings(database_url, []), "acme")
    levels = []
    with (
        reserved_port() as port,
        simulator_process(port, tokens_per_s=50) as simulator,
        gateway_process(tmp_path, database_url, [simulator.url]) as gateway,
    ):
        for more in (WRONG, RIGHT):
            with nginx(tmp_path, gateway.url, more) as url:
                await until_listening(url)
                findings = await examine(None, through=url, api_key=key)
                levels.append(
                    [
                        (one.name, one.level)
                        for one in findings
                        if one.name in {"proxy", "websockets"}
                    ]
                )
    assert levels == [
        [("proxy", "error"), ("websockets", "error"), ("proxy", "warning")],
        [("proxy", "ok"), ("websockets", "ok")],
    ]
