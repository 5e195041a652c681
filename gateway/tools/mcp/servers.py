"""MCP servers: those that operators registered, and those that requests may name.

The URL of a request may be a secret: approvals, connections, audit and stored grants name a server
by `registry:` and the id of a row, or by host and digest. Headers of a request go to no other
server; they may not make up the connection, describe another party, or belong to the protocol.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from urllib.parse import urlsplit

import orjson

from gateway.cache import LruCache
from gateway.errors import InvalidRequest
from gateway.protocol.grants import EVERY_DOMAIN, REGISTERED, DomainRules
from gateway.sealing import Binding, SealBroken
from gateway.telemetry.logs import EventLog
from gateway.tenancy.policy import McpServersAllowed
from gateway.tools.egress.network_policy import EgressRefused, NetworkPolicy, requested_host
from gateway.tools.mcp.session_pool import Peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from gateway.sealing import Sealer
    from gateway.store.tools.mcp_servers import McpServerRow
    from gateway.tenancy import TenantId


VALUE_CHARS_MAX: Final = 4096
AUTHORIZATION: Final = "authorization"

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_REFUSED: Final = re.compile(
    r"host|connection|cookie2?|set-cookie|forwarded|via|keep-alive|te|trailer|upgrade|expect|accept"
    r"|accept-encoding|last-event-id|x-session-id|x-real-ip"
    r"|(?:content|transfer|x-forwarded|proxy|mcp|sec)-.*"
)


def outgoing_headers(
    headers: Mapping[str, str], authorization: str | None, param: str
) -> dict[str, str]:
    """Return the headers by lower-case name. `authorization` is an OAuth access token.

    Raises `InvalidRequest` whose message contains no value.
    """
    sent: dict[str, str] = {}
    for name, value in headers.items():
        where = f"{param}.headers"
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name) or lower in sent:
            raise refusal("A header has a name that cannot be sent, or is there twice.", where)
        if _REFUSED.fullmatch(lower):
            raise refusal(f"The header '{lower}' cannot be set by a request: leave it out.", where)
        if len(value) > VALUE_CHARS_MAX or not _VALUE.fullmatch(value):
            raise refusal(
                f"The header '{lower}' has a value that cannot be sent: 1 to {VALUE_CHARS_MAX} "
                "printable ASCII characters are expected.",
                where,
            )
        sent[lower] = value
    if authorization is not None:
        if len(authorization) > VALUE_CHARS_MAX or not _TOKEN.fullmatch(authorization):
            message = (
                f"Expected an access token of 1 to {VALUE_CHARS_MAX} printable ASCII characters, "
                "no spaces, and without the word Bearer before it."
            )
            raise refusal(message, f"{param}.authorization")
        sent[AUTHORIZATION] = f"Bearer {authorization}"
    return sent


def headers_digest(headers: Mapping[str, str]) -> str:
    if not headers:
        return ""
    digest = hashlib.sha256()
    for part in (part for pair in sorted(headers.items()) for part in pair):
        content = part.encode()
        digest.update(len(content).to_bytes(4, "big") + content)
    return digest.hexdigest()


def refusal(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_value", param=param)


Purpose = Literal["mcp", "browser", "python", "search"]
"""`mcp` offers tools under its label; the others do the work of built-in tools."""
PURPOSES: Final[tuple[Purpose, ...]] = ("mcp", "browser", "python", "search")

URL: Final = ":url"
"""Key among the secrets: no header has such a name."""
LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
TENANTS_MAX: Final = 1024

ONLY_HTTPS: Final = NetworkPolicy(plain_http=False)
_WIDTH: Final[tuple[McpServersAllowed, ...]] = get_args(McpServersAllowed)
"""From the narrowest to the widest."""

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class McpServer:
    """Server. `is_trusted`: so are its tools' annotations. `allowed_tools` None: all."""

    identity: str
    url: str
    label: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_trusted: bool = False
    always_asks: bool = False
    allowed_tools: frozenset[str] | None = None
    purposes: frozenset[str] = frozenset({"mcp"})
    call_timeout_s: float | None = None

    def peer(
        self, tenant_id: TenantId, request_headers: Mapping[str, str], response: UUID | None = None
    ) -> Peer:
        """Return the connection; `request_headers` never replace the operator's."""
        sent = {**request_headers, **self.headers}
        digest = headers_digest(sent)
        return Peer(
            tenant_id,
            self.identity,
            self.url,
            digest,
            sent,
            is_registered=self.identity.startswith(REGISTERED),
            response=response,
            # A label that a request gives is its own word, and no name for operators.
            name=self.label if self.identity.startswith(REGISTERED) else "",
        )


@dataclass(frozen=True, slots=True)
class UrlTerms:
    urls: McpServersAllowed = "any"
    domains: DomainRules = EVERY_DOMAIN


ANY_URL: Final = UrlTerms()


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """Policy for servers named by URL. `urls` is the widest that any tenant may have."""

    urls: McpServersAllowed = "registry"
    hosts: tuple[str, ...] = ()
    network: NetworkPolicy = ONLY_HTTPS

    def check(self, url: str, terms: UrlTerms = ANY_URL) -> None:
        """Raise `EgressRefused` for a URL that may not be named."""
        urls = min(terms.urls, self.urls, key=_WIDTH.index)
        if urls == "registry":
            raise EgressRefused(
                "host", "only registered servers can be used: name one by its label"
            )
        origin = self.network.origin(url)
        listed = (origin.host == one or origin.host.endswith(f".{one}") for one in self.hosts)
        if urls == "listed" and not any(listed):
            raise EgressRefused("host", "the host is not among those that may be used")
        if not terms.domains.permits(origin.host):
            raise EgressRefused("host", "the policy of your organisation does not allow its domain")


class Registry:
    def __init__(
        self,
        load_rows: Callable[[TenantId], Awaitable[Mapping[str, McpServerRow]]],
        sealer: Sealer,
        *,
        ttl_s: float = 5.0,
    ) -> None:
        # `load_rows` is `store.tools.mcp_servers.visible_to` of a database.
        self._load_rows = load_rows
        self._sealer = sealer
        self._ttl_s = ttl_s
        self._cached: LruCache[TenantId, tuple[float, dict[str, McpServer]]] = LruCache(
            size_max=TENANTS_MAX
        )

    async def servers(self, tenant_id: TenantId) -> Mapping[str, McpServer]:
        now = asyncio.get_running_loop().time()
        cached = self._cached.get(tenant_id)
        if cached is not None and cached[0] > now:
            return cached[1]
        rows = await self._load_rows(tenant_id)
        servers = {label: server for label, row in rows.items() if (server := self._server(row))}
        self._cached.put(tenant_id, (now + self._ttl_s, servers), size=1)
        return servers

    async def by_identity(self, tenant_id: TenantId, identity: str) -> McpServer | None:
        servers = await self.servers(tenant_id)
        return next((one for one in servers.values() if one.identity == identity), None)

    async def for_purpose(self, tenant_id: TenantId, purpose: Purpose) -> McpServer | None:
        servers = await self.servers(tenant_id)
        by_label = (servers[label] for label in sorted(servers))
        return next((one for one in by_label if purpose in one.purposes), None)

    def _server(self, row: McpServerRow) -> McpServer | None:
        # None where the credentials cannot be opened: the server would be called without them.
        try:
            opened = unsealed_headers(self._sealer, row)
        except SealBroken as error:
            _log.error("the credentials of an MCP server cannot be opened", error=error)
            return None
        return McpServer(
            identity=identity_of(row.id),
            url=row.url,
            label=row.label,
            headers=opened,
            is_trusted=row.trusted,
            always_asks=row.always_asks,
            allowed_tools=None
            if row.allowed_tools is None
            else frozenset(orjson.loads(row.allowed_tools)),
            purposes=frozenset(row.purposes.split()),
            call_timeout_s=row.call_timeout_s,
        )


class ServerResolver:
    """Resolver of servers. URLs and headers may be secrets that can be guessed, so their digests
    are made with `identity_key`.
    """

    def __init__(self, registry: Registry, policy: ServerPolicy, identity_key: bytes) -> None:
        self._identity_key = identity_key
        self.registry = registry
        self.policy = policy

    async def resolve(
        self, tenant_id: TenantId, label: str, url: str | None, *, terms: UrlTerms, param: str
    ) -> McpServer:
        """Return the requested server. Raises `InvalidRequest` and `StoreError`."""
        if url is not None:
            try:
                self.policy.check(url, terms)
            except EgressRefused as error:
                message = f"The MCP server '{label}' cannot be used: {error}."
                raise refusal(message, f"{param}.server_url") from None
            identity = named_identity(url, self._identity_key)
            return McpServer(identity=identity, url=url, label=label)
        server = (await self.registry.servers(tenant_id)).get(label)
        if server is None or "mcp" not in server.purposes:
            raise refusal(
                f"No MCP server is registered as '{label}'. Give its 'server_url', or the label of "
                "a registered one.",
                f"{param}.server_label",
            )
        return server

    async def granted(
        self, tenant_id: TenantId, identity: str, secrets: Mapping[str, str]
    ) -> McpServer | None:
        """Return the server, if it may still be used."""
        if identity.startswith(REGISTERED):
            return await self.registry.by_identity(tenant_id, identity)
        url = secrets.get(URL, "")
        if identity != named_identity(url, self._identity_key):
            return None
        try:
            self.policy.check(url)
        except EgressRefused:
            return None
        return McpServer(identity=identity, url=url)

    def credential(self, sent: Mapping[str, str]) -> str:
        """Return the digest of a request's headers; empty for none."""
        plain = headers_digest(sent)
        return plain and hmac.digest(self._identity_key, plain.encode(), "sha256").hex()


def named_identity(url: str, key: bytes) -> str:
    """Return an identity that hides path and query, which may be secrets."""
    digest = hmac.digest(key, url.encode("utf-8", "surrogatepass"), "sha256").hex()
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    return f"url:{digest}@{host}"


def kept_secrets(server: McpServer, sent: Mapping[str, str]) -> dict[str, str]:
    """Return what a call needs beside a grant."""
    if server.identity.startswith(REGISTERED):
        return dict(sent)
    return {**sent, URL: server.url}


def headers_of(secrets: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in secrets.items() if name != URL}


def identity_of(row_id: UUID) -> str:
    return f"{REGISTERED}{row_id.hex}"


def sealed_headers(
    sealer: Sealer, tenant_id: TenantId, row_id: UUID, sent: Mapping[str, str]
) -> str:
    if not sent:
        return ""
    sealed = sealer.seal(_binding(sealer, tenant_id, row_id), orjson.dumps(dict(sent)))
    assert sealed is not None, "the key is the sealer's own"
    return sealed


def unsealed_headers(sealer: Sealer, row: McpServerRow) -> dict[str, str]:
    """Decrypt a row's headers. Raises `SealBroken`, also where the key is gone."""
    if not row.secret:
        return {}
    binding = _binding(sealer, row.tenant_id, row.id)
    opened: dict[str, str] = orjson.loads(sealer.open(row.secret, row.tenant_id, binding.model))
    return opened


def _binding(sealer: Sealer, tenant_id: TenantId, row_id: UUID) -> Binding:
    return Binding(tenant_id, f"mcp_servers/{row_id.hex}", sealer.key_id)


def check_url(url: str) -> None:
    """Raise `ValueError` for a URL that no server can be registered with."""
    parts = urlsplit(url)
    is_http = parts.scheme in {"http", "https"} and requested_host(url) and parts.port != 0
    if not is_http or parts.username or parts.fragment:
        raise ValueError(
            "expected a URL with http:// or https://, a host, and no user name or fragment"
        )


def checked_purposes(purposes: Sequence[str]) -> str:
    """Join purposes as they are stored. Raises `ValueError`."""
    unknown = [one for one in purposes if one not in PURPOSES]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(PURPOSES)}")
    return " ".join(one for one in PURPOSES if one in purposes)


def server_json(server: McpServer) -> dict[str, Any]:
    """Return what may be shown: never a value of a header."""
    return {
        "label": server.label,
        "url": server.url,
        "headers": sorted(server.headers),
        "trusted": server.is_trusted,
        "always_asks": server.always_asks,
        "allowed_tools": None if server.allowed_tools is None else sorted(server.allowed_tools),
        "purposes": [one for one in PURPOSES if one in server.purposes],
        "call_timeout_s": server.call_timeout_s,
    }
