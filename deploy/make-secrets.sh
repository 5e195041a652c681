#!/bin/sh
# deploy/make-secrets.sh [FOLDER]
#
# Makes the secrets that deploy/compose.yaml reads, in the folder secrets beside it, or in FOLDER:
# then GATEWAY_SECRETS has to name that. Those that are there stay as they are. Remove one (rm -f) and
# run this again to have another; docs/deploy.md tells what has to follow.
#
# Only you can enter the folder. Its files can be read by all, because a container sees no more than
# the file that it is given, and reads it as a user whom the host does not know.
set -eu
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
chmod 700 "$folder"
cd "$folder"

make() { # NAME COMMAND...
    name=$1
    shift
    [ -e "$name" ] || { "$@" >"$name.new" && chmod 444 "$name.new" && mv "$name.new" "$name"; }
}

random() {
    od -An -vtx1 -N32 /dev/urandom | tr -d ' \n'
}

url() { # USER PASSWORD_FILE
    printf 'postgresql://%s:%s@postgres:5432/gateway' "$1" "$(cat "$2")"
}

for name in postgres_password owner_password serving_password key_pepper grafana_password; do
    make "$name" random
done
rm -f owner_url serving_url
make owner_url url harmony_gateway_owner owner_password
make serving_url url harmony_gateway serving_password
