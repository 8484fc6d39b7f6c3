#!/bin/sh
# What `make` needs before Python can help: a virtual environment with the package, and a Docker engine.
# Usage: flows/bootstrap.sh packages | engine
set -eu
cd "$(dirname "$0")/.."
extra=${TREADLE_EXTRA:-cpu}

say() { printf 'treadle: %s\n' "$1" >&2; }
fail() { say "$1"; exit 2; }
is_root_on_debian() { [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ]; }
apt_install() {
  say "installing $* with apt-get"
  apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

packages() {
  python=$(command -v python3.11 || command -v python3) || fail "install Python 3.11 or newer, then run make again"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "install Python 3.11 or newer, then run make again"
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if is_root_on_debian; then apt_install python3-venv; else fail "install Python's venv module (Debian: apt-get install python3-venv), then run make again"; fi
  fi
  wanted="$extra $(cat pyproject.toml flows/bootstrap.sh configs/constraints.txt configs/overrides-cpu.txt | cksum)"
  [ "$(cat .venv/.treadle 2>/dev/null)" = "$wanted" ] && return
  say "setting up .venv with the extra '$extra' (some minutes the first time)"
  [ -x .venv/bin/uv ] || { "$python" -m venv .venv && .venv/bin/python -m pip install --quiet 'uv>=0.9'; }
  # pip's own settings hold for uv too. Without a folder that holds a CPU build of torch, uv's own switch finds one.
  UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}
  export UV_FIND_LINKS
  set -- --python .venv/bin/python --constraint configs/constraints.txt --group dev -e ".[$extra]"
  if [ "$extra" = cpu ]; then
    set -- "$@" --overrides configs/overrides-cpu.txt
    [ -n "$UV_FIND_LINKS" ] || set -- "$@" --torch-backend cpu
  fi
  .venv/bin/uv pip install --quiet "$@" >&2
  printf '%s' "$wanted" > .venv/.treadle
}

engine() {
  docker info >/dev/null 2>&1 && command -v mmdebstrap >/dev/null && return
  is_root_on_debian || fail "install Docker and mmdebstrap and start the Docker engine (see docs/operations.md), then run make again"
  command -v dockerd >/dev/null && command -v mmdebstrap >/dev/null || apt_install docker.io mmdebstrap
  docker info >/dev/null 2>&1 && return
  # A daemon that was killed leaves its pid file, which stops the next one.
  for file in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
    if [ -e "$file" ] && ! { read -r pid < "$file" && [ -d "/proc/$pid" ]; }; then rm -f "$file"; fi
  done
  say "starting the Docker engine"
  mkdir -p build
  setsid dockerd >build/dockerd.log 2>&1 </dev/null &
  for _ in $(seq 60); do
    docker info >/dev/null 2>&1 && return
    sleep 1
  done
  fail "the Docker engine does not start: read build/dockerd.log, mend it and run make again"
}

case "${1:-}" in
  packages) packages ;;
  engine) engine ;;
  *) fail "usage: flows/bootstrap.sh packages | engine" ;;
esac
