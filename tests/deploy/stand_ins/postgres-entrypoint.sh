#!/bin/sh
# What deploy/compose.yaml needs of the official image's: on the first start a cluster, the password
# of its superuser, a database and the SQL of /docker-entrypoint-initdb.d, all before anybody can
# connect over the network.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" --encoding=UTF8 --locale=C \
        --auth-local=trust --auth-host=scram-sha-256 --pgdata="$PGDATA"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "unix_socket_directories = '/run/postgresql,/tmp'" >>"$PGDATA/postgresql.conf"
    pg_ctl --wait --options="-c listen_addresses=" start
    createdb --username=postgres "$POSTGRES_DB"
    for file in /docker-entrypoint-initdb.d/*.sql; do
        psql --set=ON_ERROR_STOP=1 --no-psqlrc --username=postgres --dbname="$POSTGRES_DB" --file="$file"
    done
    pg_ctl --wait --mode=fast stop
fi
exec "$@" -c "listen_addresses=*"
