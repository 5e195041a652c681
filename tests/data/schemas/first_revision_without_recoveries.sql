SET lock_timeout = '2s';

BEGIN;

CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, 
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);


COMMIT;

DO $$
DECLARE
    needed text := CASE WHEN current_setting('server_version_num')::int >= 160000
                        THEN 'SET' ELSE 'MEMBER' END;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'harmony_gateway_app') THEN
        BEGIN
            CREATE ROLE harmony_gateway_app NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'harmony_gateway_app', needed) THEN
        BEGIN
            GRANT harmony_gateway_app TO CURRENT_USER;
        EXCEPTION WHEN unique_violation OR internal_error THEN
            NULL; -- granted, or its row updated, by a concurrent migration of another database
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'harmony_gateway_app', needed) THEN
        RAISE insufficient_privilege USING MESSAGE =
            format('%1$I must be able to SET ROLE harmony_gateway_app: GRANT harmony_gateway_app TO %1$I', current_user);
    END IF;
END $$;

BEGIN;

CREATE TABLE tenants (
    id UUID NOT NULL, 
    name TEXT NOT NULL, 
    created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
    disabled_at TIMESTAMP WITH TIME ZONE, 
    CONSTRAINT pk_tenants PRIMARY KEY (id), 
    CONSTRAINT uq_tenants_name UNIQUE (name)
);

CREATE TABLE api_keys (
    tenant_id UUID NOT NULL, 
    id UUID NOT NULL, 
    name TEXT NOT NULL, 
    hash BYTEA NOT NULL, 
    hint TEXT NOT NULL, 
    created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
    disabled_at TIMESTAMP WITH TIME ZONE, 
    CONSTRAINT pk_api_keys PRIMARY KEY (tenant_id, id), 
    CONSTRAINT uq_api_keys_hash UNIQUE (hash), 
    CONSTRAINT fk_api_keys_tenants FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);

CREATE TABLE responses (
    tenant_id UUID NOT NULL, 
    id UUID NOT NULL, 
    key_id UUID NOT NULL, 
    status TEXT NOT NULL, 
    model TEXT NOT NULL, 
    background BOOLEAN NOT NULL, 
    stored BOOLEAN NOT NULL, 
    created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
    root_created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
    completed_at TIMESTAMP WITH TIME ZONE, 
    parent_id UUID, 
    request BYTEA NOT NULL, 
    body BYTEA, 
    owner TEXT, 
    epoch INTEGER DEFAULT 0 NOT NULL, 
    lease_until TIMESTAMP WITH TIME ZONE, 
    next_entry INTEGER DEFAULT 0 NOT NULL, 
    attempts SMALLINT DEFAULT 0 NOT NULL, 
    fold_version SMALLINT NOT NULL, 
    CONSTRAINT pk_responses PRIMARY KEY (tenant_id, id), 
    CONSTRAINT ck_responses_status CHECK (status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled'))
)
 WITH (fillfactor = 50);

CREATE INDEX ix_responses_tenant_id_parent_id ON responses (tenant_id, parent_id);

CREATE INDEX ix_responses_running ON responses (tenant_id, id) WHERE status IN ('queued', 'in_progress');

CREATE TABLE messages (
    tenant_id UUID NOT NULL, 
    response_id UUID NOT NULL, 
    position INTEGER NOT NULL, 
    is_output BOOLEAN NOT NULL, 
    kind TEXT NOT NULL, 
    role TEXT, 
    phase TEXT, 
    item_id BYTEA NOT NULL, 
    call_id BYTEA, 
    name BYTEA, 
    complete BOOLEAN NOT NULL, 
    item BYTEA NOT NULL, 
    ids BYTEA, 
    CONSTRAINT pk_messages PRIMARY KEY (tenant_id, response_id, position), 
    CONSTRAINT fk_messages_responses FOREIGN KEY(tenant_id, response_id) REFERENCES responses (tenant_id, id) ON DELETE CASCADE
);

CREATE INDEX ix_messages_tenant_id_item_id ON messages (tenant_id, sha256(item_id));

CREATE TABLE events (
    tenant_id UUID NOT NULL, 
    response_id UUID NOT NULL, 
    first_entry INTEGER NOT NULL, 
    day DATE NOT NULL, 
    epoch INTEGER NOT NULL, 
    entry_count INTEGER NOT NULL, 
    entries BYTEA NOT NULL, 
    CONSTRAINT pk_events PRIMARY KEY (tenant_id, response_id, first_entry, day)
)
 PARTITION BY RANGE (day);

CREATE TABLE events_default PARTITION OF events DEFAULT;

CREATE TABLE conversations (
    tenant_id UUID NOT NULL, 
    id UUID NOT NULL, 
    created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
    metadata BYTEA NOT NULL, 
    CONSTRAINT pk_conversations PRIMARY KEY (tenant_id, id)
);

CREATE TABLE conversation_items (
    tenant_id UUID NOT NULL, 
    conversation_id UUID NOT NULL, 
    position BIGINT NOT NULL, 
    kind TEXT NOT NULL, 
    role TEXT, 
    phase TEXT, 
    item_id BYTEA NOT NULL, 
    call_id BYTEA, 
    name BYTEA, 
    complete BOOLEAN NOT NULL, 
    item BYTEA NOT NULL, 
    ids BYTEA, 
    CONSTRAINT pk_conversation_items PRIMARY KEY (tenant_id, conversation_id, position), 
    CONSTRAINT fk_conversation_items_conversations FOREIGN KEY(tenant_id, conversation_id) REFERENCES conversations (tenant_id, id) ON DELETE CASCADE
);

CREATE TABLE usage (
    tenant_id UUID NOT NULL, 
    response_id UUID NOT NULL, 
    key_id UUID NOT NULL, 
    model TEXT NOT NULL, 
    at TIMESTAMP WITH TIME ZONE NOT NULL, 
    input_tokens INTEGER NOT NULL, 
    cached_tokens INTEGER NOT NULL, 
    output_tokens INTEGER NOT NULL, 
    reasoning_tokens INTEGER NOT NULL, 
    CONSTRAINT pk_usage PRIMARY KEY (tenant_id, response_id)
);

CREATE INDEX ix_usage_tenant_id_at ON usage (tenant_id, at);

CREATE FUNCTION find_api_key(key_hash bytea)
RETURNS TABLE (tenant_id uuid, tenant_name text, key_id uuid, is_enabled boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
    SELECT t.id, t.name, k.id, k.disabled_at IS NULL AND t.disabled_at IS NULL
    FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
    WHERE k.hash = key_hash;
END;

REVOKE ALL ON FUNCTION find_api_key(bytea) FROM PUBLIC;

GRANT EXECUTE ON FUNCTION find_api_key(bytea) TO harmony_gateway_app;

ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY;

ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON api_keys USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);

ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;

ALTER TABLE tenants FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON tenants USING (id = nullif(current_setting('app.tenant_id', true), '')::uuid);

ALTER TABLE responses ENABLE ROW LEVEL SECURITY;

ALTER TABLE responses FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON responses USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);

ALTER TABLE messages ENABLE ROW LEVEL SECURITY;

ALTER TABLE messages FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON messages USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);

ALTER TABLE events ENABLE ROW LEVEL SECURITY;

ALTER TABLE events FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON events USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);

ALTER TABLE conversations ENABLE ROW LEVEL SECURITY;

ALTER TABLE conversations FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON conversations USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);

ALTER TABLE conversation_items ENABLE ROW LEVEL SECURITY;

ALTER TABLE conversation_items FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON conversation_items USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);

ALTER TABLE usage ENABLE ROW LEVEL SECURITY;

ALTER TABLE usage FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON usage USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);

CREATE POLICY operator ON tenants USING (current_user <> 'harmony_gateway_app');

CREATE POLICY operator ON api_keys USING (current_user <> 'harmony_gateway_app');

GRANT SELECT ON tenants TO harmony_gateway_app;

GRANT SELECT, INSERT, UPDATE, DELETE ON responses TO harmony_gateway_app;

GRANT SELECT, INSERT, UPDATE, DELETE ON messages TO harmony_gateway_app;

GRANT SELECT, INSERT, DELETE ON events TO harmony_gateway_app;

GRANT SELECT, INSERT, UPDATE, DELETE ON conversations TO harmony_gateway_app;

GRANT SELECT, INSERT, DELETE ON conversation_items TO harmony_gateway_app;

GRANT SELECT, INSERT ON usage TO harmony_gateway_app;

ALTER TABLE events_default ENABLE ROW LEVEL SECURITY;

ALTER TABLE events_default FORCE ROW LEVEL SECURITY;

INSERT INTO alembic_version (version_num) VALUES ('5d1e0c7a9b42') RETURNING alembic_version.version_num;

COMMIT;

