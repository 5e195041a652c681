#!/bin/sh
# As the official image: a command that begins with the program, or with an option, is for its
# master process in the foreground.
set -e
case "$1" in
haproxy) shift ;;
-*) ;;
*) exec "$@" ;;
esac
exec haproxy -W -db "$@"
