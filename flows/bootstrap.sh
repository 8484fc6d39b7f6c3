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
  # uv does not read pip's settings: what pip was told holds for it, too.
  pip_setting() { .venv/bin/python -m pip config get "$1" 2>/dev/null || true; }
  UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(pip_setting global.index-url)}}
  [ -z "$UV_DEFAULT_INDEX" ] || export UV_DEFAULT_INDEX
  links=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-$(pip_setting global.find-links)}}
  UV_FIND_LINKS=$(echo $links | tr ' ' ',')
  if [ -n "$UV_FIND_LINKS" ]; then export UV_FIND_LINKS; else unset UV_FIND_LINKS; fi
  has_cpu_torch=no
  for folder in $links; do
    if ls "$folder"/torch-*cpu*.whl >/dev/null 2>&1; then has_cpu_torch=yes; fi
  done
  set -- --python .venv/bin/python --constraint configs/constraints.txt --group dev -e ".[$extra]"
  if [ "$extra" = cpu ]; then
    set -- "$@" --overrides configs/overrides-cpu.txt
    # uv's own switch finds a CPU build of torch where no folder of wheels holds one.
    [ $has_cpu_torch = yes ] || set -- "$@" --torch-backend cpu
  fi
  .venv/bin/uv pip install --quiet "$@" >&2
  printf '%s' "$wanted" > .venv/.treadle
}

engine() {
  if ! command -v mmdebstrap >/dev/null; then
    if is_root_on_debian; then apt_install mmdebstrap; else
      say "mmdebstrap is missing: install it, or name a base image by digest in [base_image] of the configuration"
    fi
  fi
  docker info >/dev/null 2>&1 && return
  is_root_on_debian || fail "no Docker engine answers: install Docker and start it (see docs/operations.md), then run make again"
  [ -z "${DOCKER_HOST:-}" ] || fail "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST: start it or unset DOCKER_HOST, then run make again"
  command -v dockerd >/dev/null || apt_install docker.io
  command -v docker >/dev/null || apt_install docker-cli
  docker info >/dev/null 2>&1 && return
  say "starting the Docker engine"
  mkdir -p build
  # The containerd of a killed daemon lives on for some seconds and stops the next daemon: so there are several tries.
  for _ in 1 2 3 4; do
    # A daemon that was killed leaves its pid file, which stops the next one.
    for file in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
      if [ -e "$file" ] && [ ! -d "/proc/$(cat "$file")" ]; then rm -f "$file"; fi
    done
    setsid dockerd >build/dockerd.log 2>&1 </dev/null &
    daemon=$!
    for _ in $(seq 45); do
      docker info >/dev/null 2>&1 && return
      kill -0 "$daemon" 2>/dev/null || break
      sleep 1
    done
    sleep 2
  done
  fail "the Docker engine does not start: read build/dockerd.log, mend it and run make again"
}

case "${1:-}" in
  packages) packages ;;
  engine) engine ;;
  *) fail "usage: flows/bootstrap.sh packages | engine" ;;
esac
