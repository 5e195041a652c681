"""Checks of `doctor` around the gateway."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx2

from gateway.cli.findings import Finding
from gateway.settings.console import is_loopback
from gateway.store.diagnostics import certificate_expiry, endpoint
from gateway.upstreams.http.client import build_client
from gateway.wiring.databases import CONNECTIONS_BESIDE_POOL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from openai import AsyncOpenAI

    from gateway.cli.findings import Subject
    from gateway.store.diagnostics import ServerFacts

SKEW_MAX_S: Final = 2.0
"""Between two clocks: backends tell theirs in whole seconds."""
EXPIRY_WARNED: Final = timedelta(days=21)
CONNECTIONS_SPARE: Final = 10
"""For operators, backups and monitoring."""
VERIFIED: Final = "verify-full"
"""The only mode of TLS that verifies the name of the server."""
ENCRYPTED: Final = (VERIFIED, "verify-ca", "require")
PROXY_TIMEOUT_S: Final = 120.0
TOGETHER_S: Final = 0.001
"""Between events that came together."""
LUMP_EVENTS: Final = 8
"""No engine makes so many in one step."""
SILENCE_S: Final = 0.1
"""Before a lump, for a proxy to be blamed: a very fast engine sends many in a row."""
EVENTS_MIN: Final = 40
_EVENT_END: Final = b"\n\n"
_PROMPT: Final = "Count from 1 to 200 in words, one number a line."


async def roles(_: Subject, facts: ServerFacts) -> AsyncIterator[Finding]:
    detail = f"signs in as {facts.login}; the tables are {facts.owner}'s"
    remedy = ""
    if facts.roles_may_more:
        detail = "a role of tenants may sign in, or see the rows of all tenants"
        remedy = "Run as an administrator: ALTER ROLE … NOLOGIN NOSUPERUSER NOBYPASSRLS, of both."
        yield Finding("roles", False, detail, remedy)
        return
    if facts.is_superuser or facts.bypasses_rls:
        may = "is a superuser" if facts.is_superuser else "passes row-level security by"
        detail = f"{detail}; {facts.login} {may}, so that a leaked URL opens all of the server"
        remedy = "Let it sign in as a role of its own: deploy/roles.sql."
    yield Finding("roles", ok=True, detail=detail, remedy=remedy)


async def clock(_: Subject, facts: ServerFacts) -> AsyncIterator[Finding]:
    yield clock_finding("clock", "PostgreSQL's", facts.skew_s)


def clock_finding(name: str, whose: str, skew_s: float) -> Finding:
    """Judge a clock that is `skew_s` ahead of this one."""
    if abs(skew_s) <= SKEW_MAX_S:
        return Finding(name, ok=True, detail=f"{whose} and this one agree")
    ahead = "ahead of" if skew_s > 0 else "behind"
    return Finding(
        name,
        ok=False,
        detail=f"{whose} is {abs(skew_s):.0f} s {ahead} this one",
        remedy="Synchronise both by NTP (chronyc tracking): tokens, leases and bills have times.",
    )


def date_skew_s(date: str | None) -> float | None:
    """Return how far the clock of a Date header is ahead of ours."""
    try:
        clock = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return None
    if clock.tzinfo is None:  # "-0000" is a time of no zone
        clock = clock.replace(tzinfo=UTC)
    # In whole seconds, the rest is cut off.
    return (clock - datetime.now(UTC)).total_seconds() + 0.5


async def connections(subject: Subject, facts: ServerFacts) -> AsyncIterator[Finding]:
    settings = subject.settings.database
    each = settings.pool_size_max + CONNECTIONS_BESIDE_POOL
    detail = f"{each} for each replica"
    # Replicas report only while a limit binds them together.
    if replicas := subject.replicas or facts.replicas:
        detail = f"{replicas} replicas with {each} each: {replicas * each}"
    replicas = max(1, replicas)
    wanted = replicas * each
    if not facts.is_direct:
        yield _pooled(subject, f"{detail} through a pooler")
        return
    bounds = [facts.connections_max, facts.login_max, facts.database_max]
    room = min(one for one in bounds if one >= 0)
    detail = f"{detail} of {room} that the server allows, {facts.connections} are open now"
    lower = max(1, (room - CONNECTIONS_SPARE) // replicas - CONNECTIONS_BESIDE_POOL)
    remedy = f"Set database.pool_size_max to {lower} or less, or raise max_connections."
    if wanted > room:
        yield Finding("connections", False, detail, remedy)
    else:
        is_tight = wanted > room - CONNECTIONS_SPARE
        yield Finding("connections", ok=True, detail=detail, remedy=remedy if is_tight else "")


def _pooled(subject: Subject, detail: str) -> Finding:
    # The pooler's own bounds are known to its administrators only.
    settings = subject.settings.database
    detail += "; its max_client_conn has to allow them"
    if settings.listen and settings.listen_url is None:
        remedy = (
            "A transaction pooler has no LISTEN: set database.listen_url to the server itself, or "
            "database.listen to false."
        )
        return Finding("connections", False, f"{detail}; LISTEN goes through it, too", remedy)
    return Finding("connections", ok=True, detail=detail)


async def tls(subject: Subject, facts: ServerFacts) -> AsyncIterator[Finding]:
    server = endpoint(subject.settings.database_url)
    if server.host is None:
        yield Finding("tls", ok=True, detail="the database is reached by a local socket")
        return
    yield encryption_finding(server.host, server.sslmode, facts)
    try:
        expiry = await certificate_expiry(server.host, server.port)
    except OSError as error:
        detail = f"the certificate of {server.host} cannot be looked at: {error}"
        yield Finding("certificate", ok=True, detail=detail, remedy="Look at it by hand.")
        return
    if expiry is not None:
        left = expiry - datetime.now(UTC)
        detail = f"that of the database expires on {expiry:%Y-%m-%d}, in {left.days} days"
        remedy = "Renew it, and reload PostgreSQL: SELECT pg_reload_conf()."
        is_late = left < EXPIRY_WARNED
        yield Finding("certificate", left > timedelta(0), detail, remedy if is_late else "")


def encryption_finding(host: str, sslmode: str, facts: ServerFacts) -> Finding:
    if sslmode == VERIFIED:
        return Finding("tls", ok=True, detail=f"to the database, {sslmode}")
    detail = f"to the database with sslmode={sslmode}: who is between could be the database"
    # Behind a pooler, the server does not see the connection between gateway and pooler.
    if not facts.is_encrypted and (facts.is_direct or sslmode not in ENCRYPTED):
        detail = "the connection to the database is not encrypted"
    remedy = "" if is_loopback(host) else "Add sslmode=verify-full&sslrootcert=FILE to its URL."
    return Finding("tls", ok=True, detail=detail, remedy=remedy)


DATABASE_CHECKS: Final = (roles, clock, connections, tls)


async def admin_listener(subject: Subject) -> AsyncIterator[Finding]:
    admin, name = subject.settings.admin, "admin port"
    if admin.port is None:
        return
    if is_loopback(admin.host):
        yield Finding(name, ok=True, detail=f"{admin.host}:{admin.port}, for this machine only")
        return
    detail, remedy = f"listens on {admin.host}:{admin.port}", ""
    if not _is_private(admin.host):
        detail += ", which other networks may reach"
        remedy = "Set admin.host to a private address, or let a firewall keep others out."
    yield Finding(name, ok=True, detail=detail, remedy=remedy)
    host = _host(subject.through or "")
    if host and admin.port and await _is_open(host, admin.port):
        yield Finding(
            name,
            ok=False,
            detail=f"{host}, which clients use, takes connections at port {admin.port}, too",
            remedy=f"Close port {admin.port} there: the operator's API is no client's business.",
        )


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_private(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_private and not address.is_unspecified


async def _is_open(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(SKEW_MAX_S):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await writer.wait_closed()
    except OSError:
        return False
    return True


async def proxy(subject: Subject) -> AsyncIterator[Finding]:
    if subject.through is None:
        return
    from openai import AsyncOpenAI, OpenAIError

    base_url = subject.through.rstrip("/").removesuffix("/v1")
    if not subject.api_key or not subject.api_key.isascii():
        remedy = "Give a key with --key or OPENAI_API_KEY: keys create makes one."
        yield Finding("proxy", False, "there is no API key to ask it with", remedy)
        return
    try:
        client = AsyncOpenAI(
            base_url=f"{base_url}/v1",
            api_key=subject.api_key,
            max_retries=0,
            timeout=PROXY_TIMEOUT_S,
        )
    except httpx2.InvalidURL as error:
        remedy = "Give one such as https://gateway.example."
        yield Finding("proxy", False, f"{base_url} is no URL: {error}", remedy)
        return
    async with client:
        try:
            yield await _streamed(client)
        except (OpenAIError, httpx2.HTTPError) as error:
            remedy = "Does the URL lead to a gateway, and does it take the key?"
            yield Finding("proxy", False, f"a stream through it fails: {error}", remedy)
            return
        yield await _upgraded(base_url, subject.api_key)
        for finding in await _private_paths(base_url):
            yield finding


async def _streamed(client: AsyncOpenAI) -> Finding:
    models = (await client.models.list()).data
    if not models:
        return Finding("proxy", False, "it leads to a gateway without models", "Start a backend.")
    began, times = time.monotonic(), []
    # Not by event: to parse one takes longer than to read many that come together.
    async with client.responses.with_streaming_response.create(
        model=models[0].id, input=_PROMPT, stream=True, store=False, max_output_tokens=512
    ) as answer:
        async for part in answer.iter_bytes():
            times += [time.monotonic() - began] * part.count(_EVENT_END)
    return stream_finding(times)


def stream_finding(times: Sequence[float]) -> Finding:
    """Judge by the times of events whether they were held back."""
    held, lump, began = 0, 1, times[0] if times else 0.0
    silent_s = began
    for before, now in pairwise([*times, float("inf")]):
        if now - before <= TOGETHER_S:
            lump += 1
            continue
        held += lump if lump >= LUMP_EVENTS and silent_s >= SILENCE_S else 0
        lump, silent_s = 1, now - before
    span_s = times[-1] - began if times else 0.0
    detail = f"{len(times)} events of a stream came within {span_s:.2f} s"
    is_short = len(times) < EVENTS_MIN
    if held * 3 > len(times) and not is_short:
        remedy = "Switch off that it buffers and compresses them: docs/operate.md#4-serve."
        return Finding("proxy", False, f"{detail}, many of them held back and at once", remedy)
    if is_short or span_s < SILENCE_S:
        remedy = "Try again with a slower model."
        return Finding("proxy", ok=True, detail=f"{detail}: too few to tell", remedy=remedy)
    return Finding("proxy", ok=True, detail=f"{detail}, as they were made")


async def _upgraded(base_url: str, api_key: str) -> Finding:
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    url = f"ws{base_url.removeprefix('http')}/v1/responses"
    name = "websockets"
    try:
        async with connect(url, additional_headers={"authorization": f"Bearer {api_key}"}):
            return Finding(name, ok=True, detail="are passed on by the proxy")
    except (OSError, WebSocketException) as error:
        remedy = "Let it pass the headers Upgrade and Connection: docs/operate.md#4-serve."
        return Finding(name, False, f"are not passed on by the proxy: {error}", remedy)


async def _private_paths(base_url: str) -> list[Finding]:
    # Check that the proxy hides the paths that describe the installation from clients.
    async with build_client() as client:
        exposed = []
        for path in ("/metrics", "/readyz", "/admin/v1/settings"):
            with suppress(httpx2.HTTPError):  # no answer says no, too
                if (await client.get(base_url + path)).status_code not in {403, 404}:
                    exposed.append(path)
    detail = f"it passes {', '.join(exposed)} on to anybody"
    remedy = "Answer 404 there: docs/operate.md#4-serve."
    return [Finding("proxy", ok=True, detail=detail, remedy=remedy)] if exposed else []
