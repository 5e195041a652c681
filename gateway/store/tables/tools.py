from __future__ import annotations

from typing import Final

from gateway.store.tables.columns import (
    EVERYTHING,
    ROOM_FOR_UPDATES,
    SETTINGS,
    Access,
    Kept,
    Lifetime,
    bigint,
    boolean,
    bytea,
    index,
    integer,
    of_parent,
    older_than,
    one_of,
    smallint,
    table,
    tenant_id,
    text,
    time,
    tsvector,
    unique,
    uuid,
)

# Pages that a tenant's browser was shown. `key` is a digest of the page, `asked` of the requested
# URL; `links` are separated by line ends.
tool_pages: Final = table(
    "tool_pages",
    tenant_id(),
    bytea("key", Kept.DIGEST, key=True),
    bytea("asked", Kept.DIGEST),
    bytea("url", Kept.SEALED),
    bytea("title", Kept.SEALED),
    bytea("text", Kept.SEALED),
    bytea("links", Kept.SEALED),
    time("fetched_at"),
    index("tenant_id", "asked"),
    index("tenant_id", "fetched_at"),
    lifetime=Lifetime(
        erased="those that nobody else was shown",
        expires="retention.response_s",
        expired=(older_than("fetched_at", "coalesce(tenants.response_retention_s, :response_s)"),),
    ),
    access=Access(app=EVERYTHING, runs="SELECT (tenant_id, key, fetched_at), DELETE", of_runs=True),
    bound_by=("key",),
    is_upserted=True,
)
# Pages that the operator lets be searched. `tenant_id` is nil where they are for all tenants,
# `key` a digest of the URL. `text` here is plain text: it was cleaned when it was read.
web_documents: Final = table(
    "web_documents",
    tenant_id(),
    bytea("key", Kept.DIGEST, key=True),
    text("url", Kept.OPERATOR),
    text("host", Kept.OPERATOR),
    text("title", Kept.OPERATOR),
    text("text", Kept.OPERATOR),
    text("links", Kept.OPERATOR),
    tsvector("words", exported=False),
    time("added_at"),
    lifetime=SETTINGS,
    access=Access(app="SELECT", operated=True, shared=True),
    is_upserted=True,
)
# MCP servers that operators registered: of one tenant, or of all (a tenant id of zeros).
# `secret`: the headers that it is sent, sealed. `allowed_tools`: a JSON list; null: all.
mcp_servers: Final = table(
    "mcp_servers",
    tenant_id(),
    uuid("id", key=True),
    text("label", Kept.OPERATOR),
    text("url", Kept.OPERATOR),
    text("secret", Kept.ELSEWHERE, exported=False),
    boolean("trusted"),
    boolean("always_asks"),
    bytea("allowed_tools", Kept.OPERATOR, null=True),
    text("purposes", Kept.OPERATOR),
    integer("call_timeout_s", null=True),
    time("created_at"),
    unique("tenant_id", "label"),
    lifetime=SETTINGS,
    access=Access(app=EVERYTHING),
)
# Requests for approval; `used_by`: the response that used it. Digests and times only.
tool_approvals: Final = table(
    "tool_approvals",
    tenant_id(),
    bytea("request_id", Kept.ID, key=True),
    bytea("digest", Kept.DIGEST),
    time("asked_at"),
    time("expires_at"),
    uuid("used_by", null=True),
    time("used_at", null=True),
    index("tenant_id", "expires_at"),
    lifetime=Lifetime(
        deleted="its response",
        erased="those that were asked for",
        expires="7 days after they end",
        expired=("expires_at < now() - interval '7 days'",),
    ),
    access=Access(app=EVERYTHING, runs="SELECT, DELETE", of_runs=True),
    is_upserted=True,
)
# No foreign key, like `usage`. `server`, `tool`, `approval_request_id` and `hosts` (with spaces
# between them) are names that others chose.
tool_calls: Final = table(
    "tool_calls",
    tenant_id(),
    uuid("response_id", key=True),
    integer("ordinal", key=True),
    smallint("attempt", key=True),
    text("kind", Kept.WORD),
    bytea("server", Kept.SEALED),
    bytea("tool", Kept.SEALED),
    bytea("arguments_hash", Kept.DIGEST),
    integer("arguments_bytes"),
    integer("result_bytes"),
    integer("result_ids"),
    text("outcome", Kept.WORD),
    integer("duration_ms"),
    text("replica", Kept.WORD),
    time("at"),
    text("approval", Kept.WORD, null=True),
    bytea("approval_request_id", Kept.ID, null=True),
    bytea("hosts", Kept.SEALED, null=True),
    index("tenant_id", "at"),
    lifetime=Lifetime(
        erased="those of the responses",
        expires="retention.tool_calls_s",
        expired=(older_than("at", ":tool_calls_s"),),
    ),
    access=Access(
        app="SELECT, INSERT",
        runs="SELECT (tenant_id, response_id, ordinal, attempt, at), DELETE",
        of_runs=True,
    ),
    bound_by=("response_id", "ordinal"),
)
# `expires_at` moves with `last_active_at`. `owner`, `epoch`, `engine`, `handle`: in which
# process its interpreter is, if it has one; `epoch` counts interpreters.
containers: Final = table(
    "containers",
    tenant_id(),
    uuid("id", key=True),
    bytea("name", Kept.NAME),
    time("created_at"),
    time("last_active_at"),
    time("expires_at"),
    integer("idle_s"),
    bigint("memory_bytes"),
    text("owner", Kept.WORD, null=True, exported=False),
    integer("epoch", default="0"),
    text("engine", Kept.WORD, null=True),
    bytea("handle", Kept.WORD, null=True, exported=False),
    uuid("project_id", null=True),
    index("tenant_id", "created_at"),
    index("tenant_id", "expires_at"),
    lifetime=Lifetime(
        deleted="itself",
        erased="those that nobody else uses",
        expires="a day after they end",
        # Until then it says that it ended; its files go at once.
        expired=("expires_at < now() - interval '1 day'",),
    ),
    access=Access(
        app=EVERYTHING,
        runs="SELECT (tenant_id, id, expires_at), DELETE",
        of_runs=True,
        of_projects=True,
    ),
    is_upserted=True,
    postgresql_with=ROOM_FOR_UPDATES,
)
# `name`: the path of a file of a container, else the name of its upload. A file of a container
# belongs to the container's project, whatever `project_id` says.
files: Final = table(
    "files",
    tenant_id(),
    uuid("id", key=True),
    uuid("container_id", null=True),
    bytea("name", Kept.NAME),
    text("purpose", Kept.WORD, null=True),
    text("source", Kept.WORD, null=True),
    bigint("size_bytes"),
    bytea("digest", Kept.DIGEST),
    time("created_at"),
    time("expires_at", null=True),
    uuid("project_id", null=True),
    of_parent("container_id", "containers"),
    one_of("source", "user", "assistant"),
    index("tenant_id", "container_id", "created_at"),
    index("tenant_id", "expires_at", where="expires_at IS NOT NULL"),
    lifetime=Lifetime(
        deleted="itself, its container",
        erased="those that nobody else uses",
        expires="as they say",
        expired=(
            "expires_at < now()",
            "container_id IN (SELECT id FROM containers"
            " WHERE containers.tenant_id = tenants.id AND containers.expires_at < now())",
        ),
    ),
    access=Access(
        app=EVERYTHING,
        runs="SELECT (tenant_id, id, container_id, expires_at), DELETE",
        of_runs=True,
        of_projects=True,
    ),
)
file_chunks: Final = table(
    "file_chunks",
    tenant_id(),
    uuid("file_id", key=True),
    integer("number", key=True),
    bytea("content", Kept.SEALED),
    of_parent("file_id", "files"),
    lifetime=Lifetime(deleted="its file", erased="with the file", expires="with the file"),
    access=Access(app="SELECT, INSERT, DELETE"),
    bound_by=("digest", "number"),
)
