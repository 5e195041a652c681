"""Pages that the browser of a tenant was shown, by a digest of what they say.

They are what a later call scrolls in, finds text in, or follows a link of, so they are kept as long
as responses are. The same page is one row, however often it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from gateway.store import content
from gateway.store.packing import pack_text, unpack_text
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from gateway.encryption.cipher import ContentCipher
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page as it is stored. `url` is empty for results of a search; no link has a line end."""

    url: str
    title: str
    text: str
    links: tuple[str, ...] = ()

    @property
    def key(self) -> bytes:
        """Return the SHA-256 digest of the whole page."""
        digest = sha256()
        for part in (self.url, self.title, self.text, "\n".join(self.links)):
            content = pack_text(part)
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.digest()


_PUT: Final = Statement("""
INSERT INTO tool_pages (tenant_id, key, asked, url, title, text, links, fetched_at)
VALUES (:tenant, :key, :asked, :url, :title, :text, :links, now())
ON CONFLICT (tenant_id, key) DO UPDATE
SET asked = excluded.asked, fetched_at = excluded.fetched_at
""")
_GET: Final = Statement("""
SELECT key, url, title, text, links FROM tool_pages WHERE tenant_id = :tenant AND key = :key
""")
_FIND: Final = Statement("""
SELECT key, url, title, text, links FROM tool_pages
WHERE tenant_id = :tenant AND asked = :asked
  AND fetched_at > now() - make_interval(secs => CAST(:age_max_s AS double precision))
ORDER BY fetched_at DESC
LIMIT 1
""")


async def put(database: Database, tenant_id: TenantId, page: StoredPage, *, asked: str) -> bytes:
    """Store a page, fetched now, that the URL `asked` led to; return its key.

    Raises `StoreUnavailable`.
    """
    row = {
        "tenant": tenant_id,
        "key": page.key,
        "asked": _digest(asked),
        "url": pack_text(page.url),
        "title": pack_text(page.title),
        "text": pack_text(page.text),
        "links": pack_text("\n".join(page.links)),
    }
    async with database.transaction(tenant_id) as connection:
        cipher = connection.cipher(tenant_id)
        await connection.execute(_PUT, content.sealed(cipher, "tool_pages", row))
    return page.key


async def get(database: Database, tenant_id: TenantId, key: bytes) -> StoredPage | None:
    """Return the page of a key, or None if it was removed. Raises `StoreUnavailable`."""
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_GET, {"tenant": tenant_id, "key": key})
        cipher = connection.cipher(tenant_id)
    return _page(rows.one(), cipher) if rows else None


async def find(
    database: Database, tenant_id: TenantId, asked: str, *, age_max_s: float
) -> StoredPage | None:
    """Return the page that a URL led to at most `age_max_s` ago. Raises `StoreUnavailable`."""
    wanted = {"tenant": tenant_id, "asked": _digest(asked), "age_max_s": age_max_s}
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_FIND, wanted)
        cipher = connection.cipher(tenant_id)
    return _page(rows.one(), cipher) if rows else None


def _digest(url: str) -> bytes:
    return sha256(pack_text(url)).digest()


def _page(row: Row, cipher: ContentCipher) -> StoredPage:
    values = content.opened(cipher, "tool_pages", row, ("url", "title", "text", "links"))
    links = unpack_text(values["links"])
    return StoredPage(
        unpack_text(values["url"]),
        unpack_text(values["title"]),
        unpack_text(values["text"]),
        tuple(links.split("\n")) if links else (),
    )
