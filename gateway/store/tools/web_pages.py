"""Pages: those that the browser of a tenant was shown, and those that an operator lets be searched.

A shown page is one row, by a digest of its content, as long as responses are kept: later calls
scroll in it, search it, or follow its links.

Row-level security keeps an index on the words of documents from being used (a comparison might tell
what others' rows say), so a search reads all documents that its tenant may see: this is for
thousands of pages, not for the web.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gateway.audit import COMMAND_LINE
from gateway.store import audit_log, content
from gateway.store.packing import pack_text, unpack_text
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gateway.audit import Author
    from gateway.encryption.cipher import ContentCipher
    from gateway.protocol.grants import DomainRules
    from gateway.store.postgres.database import Database, Row
    from gateway.tenancy import TenantId


@dataclass(frozen=True)
class StoredPage:
    """A page. `url` is empty for results of a search; no link has a line end. The text of a
    document is as the browser shows it, without NUL and surrogates.
    """

    url: str
    title: str
    text: str
    links: tuple[str, ...] = ()

    @cached_property
    def key(self) -> bytes:
        digest = sha256()
        for part in (self.url, self.title, self.text, "\n".join(self.links)):
            content = pack_text(part)
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.digest()


_PUT_PAGE: Final = Statement("""
INSERT INTO tool_pages (tenant_id, key, asked, url, title, text, links, fetched_at)
VALUES (:tenant, :key, :asked, :url, :title, :text, :links, now())
ON CONFLICT (tenant_id, key) DO UPDATE
SET asked = excluded.asked, fetched_at = excluded.fetched_at
""")
_GET_PAGE: Final = Statement("""
SELECT key, url, title, text, links FROM tool_pages WHERE tenant_id = :tenant AND key = :key
""")
_FIND_PAGE: Final = Statement("""
SELECT key, url, title, text, links FROM tool_pages
WHERE tenant_id = :tenant AND asked = :asked
  AND fetched_at > now() - make_interval(secs => CAST(:age_max_s AS double precision))
ORDER BY fetched_at DESC
LIMIT 1
""")


async def put_page(
    database: Database, tenant_id: TenantId, page: StoredPage, *, requested_url: str
) -> bytes:
    row = {
        "tenant": tenant_id,
        "key": page.key,
        "asked": _digest(requested_url),
        "url": pack_text(page.url),
        "title": pack_text(page.title),
        "text": pack_text(page.text),
        "links": pack_text("\n".join(page.links)),
    }
    async with database.transaction(tenant_id) as connection:
        cipher = connection.cipher(tenant_id)
        await connection.execute(_PUT_PAGE, content.sealed(cipher, "tool_pages", row))
    return page.key


async def get_page(database: Database, tenant_id: TenantId, key: bytes) -> StoredPage | None:
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_GET_PAGE, {"tenant": tenant_id, "key": key})
        cipher = connection.cipher(tenant_id)
    return _page(rows.one(), cipher) if rows else None


async def find_page(
    database: Database, tenant_id: TenantId, requested_url: str, *, age_max_s: float
) -> StoredPage | None:
    wanted = {"tenant": tenant_id, "asked": _digest(requested_url), "age_max_s": age_max_s}
    async with database.transaction(tenant_id) as connection:
        rows = await connection.execute(_FIND_PAGE, wanted)
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


TEXT_CHARS_MAX: Final = 1_000_000
INDEXED_CHARS_MAX: Final = 400_000
"""Characters: Postgres keeps a megabyte of words of one text at most."""
_LINK: Final = "【[0-9]+†([^†】]*)(†[^】]*)?】"
"""Links in the form of `gateway.tools.browser.page.link`; only their words are indexed."""
_WORDS: Final = (
    f"regexp_replace(left(CAST(:text AS text), {INDEXED_CHARS_MAX}), '{_LINK}', '\\1', 'g')"
)
_PUT_DOCUMENT: Final = Statement(f"""
INSERT INTO web_documents (tenant_id, key, url, host, title, text, links, words, added_at)
VALUES (
    :tenant, :key, :url, :host, :title, :text, :links,
    setweight(to_tsvector(CAST(CAST(:language AS text) AS regconfig), CAST(:title AS text)), 'A')
    || to_tsvector(CAST(CAST(:language AS text) AS regconfig), {_WORDS}),
    now()
)
ON CONFLICT (tenant_id, key) DO UPDATE
SET title = excluded.title, text = excluded.text, links = excluded.links, words = excluded.words,
    added_at = excluded.added_at
""")  # noqa: S608 - constants
_LIST_DOCUMENTS: Final = Statement("""
SELECT nullif(d.tenant_id, :everyone) AS tenant_id, url, title, length(text) AS chars, added_at
FROM web_documents AS d
WHERE CAST(:tenant AS uuid) IS NULL OR d.tenant_id = :tenant
ORDER BY d.tenant_id, url
LIMIT :rows_max
""")
_REMOVE_DOCUMENTS: Final = Statement("""
DELETE FROM web_documents
WHERE tenant_id = :tenant AND (url = :url OR starts_with(url, CAST(:below AS text)))
""")
_GET_DOCUMENT: Final = Statement("""
SELECT url, title, text, links FROM web_documents
WHERE tenant_id IN (:tenant, :everyone) AND key = :key
ORDER BY tenant_id = :everyone
LIMIT 1
""")
# With `any_word`, pages that have some of the words match, for searches that no page matches fully.
_SEARCH: Final = Statement(f"""
WITH asked AS (
    SELECT websearch_to_tsquery(CAST(CAST(:language AS text) AS regconfig), :query) AS words
), query AS (
    SELECT CASE WHEN :any_word THEN CAST(replace(CAST(words AS text), ' & ', ' | ') AS tsquery)
                ELSE words END AS wanted
    FROM asked
), found AS (
    SELECT d.url, d.title, d.text, d.added_at, d.tenant_id = :everyone AS is_shared, query.wanted,
           ts_rank_cd(d.words, query.wanted, 1) AS score
    FROM web_documents d CROSS JOIN query
    WHERE d.tenant_id IN (:tenant, :everyone) AND d.words @@ query.wanted
      AND (cardinality(CAST(:domains AS text[])) = 0 OR EXISTS (
          SELECT FROM unnest(CAST(:domains AS text[])) AS domain
          WHERE d.host = domain OR right(d.host, length(domain) + 1) = '.' || domain
      ))
      AND NOT EXISTS (
          SELECT FROM unnest(CAST(:denied AS text[])) AS domain
          WHERE d.host = domain OR right(d.host, length(domain) + 1) = '.' || domain
      )
    ORDER BY score DESC, is_shared, d.url
    LIMIT :rows_max
)
SELECT url, title, added_at, ts_headline(
    CAST(CAST(:language AS text) AS regconfig),
    regexp_replace(left(text, 50000), '{_LINK}', '\\1', 'g'), wanted,
    'StartSel="", StopSel="", MaxFragments=3, MaxWords=40, MinWords=15, FragmentDelimiter=" … "'
) AS snippet
FROM found ORDER BY score DESC, is_shared, url
""")  # noqa: S608 - constants


async def put_documents(
    database: Database,
    tenant_id: TenantId | None,
    documents: Sequence[StoredPage],
    *,
    language: str,
) -> None:
    """Add documents for a tenant, or for all tenants if None; each replaces the one of its URL.

    `language` is a text search configuration of Postgres.
    """
    rows = [
        {
            "tenant": tenant_id or EVERYONE,
            "key": _key(one.url),
            "url": one.url,
            "host": (urlsplit(one.url).hostname or "").rstrip("."),
            "title": one.title,
            "text": one.text[:TEXT_CHARS_MAX],
            "links": "\n".join(one.links),
            "language": language,
        }
        for one in documents
    ]
    if rows:
        async with database.owner_transaction() as connection:
            await connection.execute(_PUT_DOCUMENT, rows)


async def documents_of(database: Database, tenant_id: UUID | None, *, rows_max: int) -> list[Row]:
    """Return the documents of a tenant (`schema.EVERYONE`: for all tenants), or all if None."""
    parameters = {"tenant": tenant_id, "everyone": EVERYONE, "rows_max": rows_max}
    async with database.owner_transaction() as connection:
        return await connection.execute(_LIST_DOCUMENTS, parameters)


async def note_documents_added(
    database: Database,
    tenant_id: TenantId | None,
    place: str,
    count: int,
    author: Author = COMMAND_LINE,
) -> None:
    event = author.event("harmony.pages.added", place, data={"pages": count})
    async with database.owner_transaction() as connection:
        await audit_log.record(connection, tenant_id, event)


async def remove_documents(
    database: Database, tenant_id: TenantId | None, url: str, author: Author = COMMAND_LINE
) -> int:
    """Remove a document, and all below its URL."""
    what = {
        "tenant": tenant_id or EVERYONE,
        "url": url,
        "below": url if url.endswith("/") else f"{url}/",
    }
    async with database.owner_transaction() as connection:
        count = await connection.count(_REMOVE_DOCUMENTS, what)
        if count:
            event = author.event("harmony.pages.removed", url, data={"pages": count})
            await audit_log.record(connection, tenant_id, event)
        return count


async def get_document(database: Database, tenant_id: TenantId, url: str) -> StoredPage | None:
    wanted = {"tenant": tenant_id, "everyone": EVERYONE, "key": _key(url)}
    async with database.transaction(tenant_id) as connection:
        row = (await connection.execute(_GET_DOCUMENT, wanted)).one_or_none()
    if row is None:
        return None
    links = tuple(row.links.split("\n")) if row.links else ()
    return StoredPage(row.url, row.title, row.text, links)


async def search_documents(
    database: Database,
    tenant_id: TenantId,
    query: str,
    *,
    domains: DomainRules,
    count: int,
    language: str,
) -> list[Row]:
    """Return documents with all words of a query, or else with some of them, best first."""
    parameters = {
        "tenant": tenant_id,
        "everyone": EVERYONE,
        "query": query.replace("\0", " ").encode("utf-8", "replace").decode(),
        "domains": list(domains.allowed),
        "denied": list(domains.denied),
        "language": language,
        "rows_max": 2 * count,
    }
    documents: dict[str, Row] = {}
    async with database.transaction(tenant_id) as connection:
        for any_word in (False, True):
            for row in await connection.execute(_SEARCH, parameters | {"any_word": any_word}):
                documents.setdefault(row.url, row)
            if documents:
                break
    return list(documents.values())[:count]


def _key(url: str) -> bytes:
    return sha256(url.encode("utf-8", "replace")).digest()
