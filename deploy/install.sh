#!/bin/sh
# Install a lock file into an environment: install.sh PYTHON LOCK. With uv, which takes a tenth of
# pip's time and is installed first; with pip where that does not work. Both check the hashes.
set -eu
python=$1 lock=$2
here=$(dirname "$0")/..

# Of pip's warnings most are about the user's configuration, which is no matter of ours.
quietly() {
	"$python" -m pip install --quiet --quiet --disable-pip-version-check --no-deps --require-hashes "$@"
}

# uv does not read pip's configuration, but must not ask an index that pip would not ask.
configured() {
	"$python" -m pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | head -n 1
}

with_uv() {
	quietly --retries 0 --only-binary :all: -r "$here/requirements-uv.lock" || return
	index=$(configured index-url) none=$(configured no-index)
	if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi
	case $none in ''|0|[Ff]alse|no|off) ;; *) return 1 ;; esac
	"$(dirname "$python")/uv" pip install --quiet --no-deps --require-hashes --python "$python" -r "$lock"
}

with_uv 2>/dev/null || quietly -r "$lock" || {
	echo "cannot install $lock: is the package index reachable, or is one named in pip's configuration?" >&2
	exit 1
}
