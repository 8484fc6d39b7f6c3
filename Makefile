# `make demo` and `make test` need Python 3.11, git and make; they set up everything else themselves.
.DEFAULT_GOAL := help
.PHONY: help packages engine demo test unit lint doctor bench clean
AREA ?= mix
PYTEST := .venv/bin/python -m pytest

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

packages:  ## .venv with the package (TREADLE_EXTRA=gpu for CUDA machines)
	@sh flows/bootstrap.sh packages

engine:  ## a running Docker engine
	@sh flows/bootstrap.sh engine

demo: packages engine  ## the whole journey on real input
	@.venv/bin/treadle demo

test: packages engine lint  ## the whole suite: unit, torch, docker, vllm, e2e
	$(PYTEST) tests/unit
	$(PYTEST) tests/torch tests/docker tests/vllm tests/e2e

unit: packages  ## under a minute; needs no docker, torch or vllm
	$(PYTEST) tests/unit

lint: packages  ## format, lint, types, import direction
	.venv/bin/ruff format --check --quiet .
	.venv/bin/ruff check --quiet .
	.venv/bin/mypy
	.venv/bin/lint-imports

doctor: packages  ## what is there and what is missing
	@.venv/bin/treadle doctor

bench: packages  ## figures against peers: make bench AREA=mix
	@.venv/bin/python -m tests.bench $(AREA)

clean:  ## remove what the demo and the benches made
	rm -rf build
