-- The roles of the gateway, for psql as a superuser, in the gateway's database. It may be run again:
-- that is how passwords are changed.
--
--   harmony_gateway_owner  owns the database and its tables: `db upgrade`, `db maintain`, `tenants`,
--                          `keys`, `pages`. No superuser, and it may make no roles.
--   harmony_gateway        serves. It owns nothing, cannot change the schema, and sees no hash of a
--                          key; what it may do it does as one of the two roles below.
--   harmony_gateway_app    transactions of one tenant: row-level security binds it.
--   harmony_gateway_runs   claims, logs and expiry of all tenants: no item, no body, no key.
--
-- The passwords are the variables owner_password and serving_password, as in
--   psql -v owner_password=... -v serving_password=... -f roles.sql DATABASE
-- or, without those, the files of the same names in /run/secrets.

\set ON_ERROR_STOP on
SET client_min_messages = warning;
\if :{?owner_password}
\else
    \set owner_password `cat /run/secrets/owner_password`
    \set serving_password `cat /run/secrets/serving_password`
\endif

BEGIN;
SELECT format('CREATE ROLE %I', name)
FROM unnest(ARRAY[
    'harmony_gateway_owner', 'harmony_gateway', 'harmony_gateway_app', 'harmony_gateway_runs'
]) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)
\gexec

ALTER ROLE harmony_gateway_app NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;
ALTER ROLE harmony_gateway_runs NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;
ALTER ROLE harmony_gateway_owner
    LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS PASSWORD :'owner_password';
ALTER ROLE harmony_gateway
    LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS PASSWORD :'serving_password';
GRANT harmony_gateway_app, harmony_gateway_runs TO harmony_gateway_owner, harmony_gateway;

ALTER DATABASE :"DBNAME" OWNER TO harmony_gateway_owner;
REVOKE ALL ON DATABASE :"DBNAME" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"DBNAME" TO harmony_gateway;
COMMIT;
