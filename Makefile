# Every target sets itself up: Python 3.11+, make and a package registry are all it needs.
# `make demo` shows Stoker at work; `make test` and `make check` are what CI runs.

PY := .venv/bin/python
# Two more than cores: tests of real processes wait more than they compute.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 2)))
MINUTES ?= 10
TOOLS_PATHS := src tests tools benchmarks
# Each worker imports each test, and hundreds of processes are started: bytecode is kept whatever the caller has said.
unexport PYTHONDONTWRITEBYTECODE

WALLS := Instead of importing across a wall: a rule goes into brain, what a runtime gives comes in through a port \
(stoker/ports.py, control/control_ports.py, agent/ports.py), and only composition roots pick adapters; see ARCHITECTURE.md.

.PHONY: help demo test test-heavy check fmt lint types proto coverage bench soak lock reference docs images setup setup-dev

help:
	@sed -n 's/^## //p' Makefile

setup:
	@./tools/setup.sh run

setup-dev:
	@./tools/setup.sh dev

## make demo       a cluster of real processes on this machine, ten jobs, a report
demo: setup
	@.venv/bin/stoker demo

## make test       every test but the heavy ones (ARGS="-k words" narrows it down)
test: setup-dev
	@$(PY) -m compileall -q src
	@$(PY) -m pytest -q -m "not heavy" -n $(WORKERS) --dist worksteal $(ARGS)

## make test-heavy the tests that need longer: many seeds, kill loops at full length, virtual machines, properties with more examples
test-heavy: setup-dev
	@$(PY) -m compileall -q src
	@$(PY) -m pytest -q -m "heavy or hypothesis" --hypothesis-profile thorough --timeout 600 -n $(WORKERS) --dist worksteal $(ARGS)

## make check      formatting, lint, types, import contracts, taste, generated files; writes nothing
check: lint types
	@$(PY) tools/gen_proto.py --check
	@$(PY) -m tools.gen_reference --check

## make lint       the quick half of check
lint: setup-dev
	@.venv/bin/ruff format --check --quiet $(wildcard $(TOOLS_PATHS))
	@.venv/bin/ruff check --quiet $(wildcard $(TOOLS_PATHS))
	@said=$$(.venv/bin/lint-imports --no-cache) || { echo "$$said"; echo "$(WALLS)"; exit 1; }
	@$(PY) -m tools.tidy

types: setup-dev
	@.venv/bin/mypy --no-error-summary src/stoker tools

## make fmt        writes the formatting and the fixes that are safe
fmt: setup-dev
	@.venv/bin/ruff check --quiet --fix-only $(wildcard $(TOOLS_PATHS))
	@.venv/bin/ruff format --quiet $(wildcard $(TOOLS_PATHS))

## make proto      regenerates src/stoker/wire/gen from proto/
proto: setup-dev
	@$(PY) tools/gen_proto.py

## make reference  regenerates docs/reference from the code
reference: setup-dev
	@$(PY) -m tools.gen_reference

## make coverage   every test, with the lines that none of them ran
coverage: setup-dev
	@$(PY) -m pytest -q -n $(WORKERS) --dist worksteal --cov --cov-report=term-missing:skip-covered $(ARGS)

## make bench      measures what users wait for, each figure beside its floor (BENCHES="start_latency" for one)
BENCHES ?= commands start_latency first_prompt throughput submissions scale stalls idle_agents append decide replication take_over hostile jct containers web
bench: setup-dev
	@failed=; for each in $(BENCHES); do echo "# $$each"; $(PY) -m benchmarks.$$each $(ARGS) || failed="$$failed $$each"; done; \
		[ -z "$$failed" ] || { echo "make bench: failed:$$failed" >&2; exit 1; }

## make soak       random faults on virtual time for MINUTES (10) minutes, from where the last soak stopped; KIND=single, pair, shared, fast, lying, taking, pair-taking, days or pair-days
soak: setup-dev
	@$(PY) -m tests.rig.soak --minutes $(MINUTES) $(if $(KIND),--kind $(KIND))

## make docs       the pages of docs/ as a site under build/site, every link checked
docs: reference
	@./tools/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

## make images     one image for control plane and agent (BASE=, IMAGE=, DOCKER=podman); needs Docker or Podman
images: setup
	@./deploy/images/build.sh

## make lock       renews the locks from pyproject.toml
LOCK := .venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11
lock: setup-dev
	@$(LOCK) pyproject.toml -o requirements.txt
	@$(LOCK) --extra containers --extra oidc --extra postgres --extra top -c requirements.txt pyproject.toml -o requirements-extras.txt
	@$(LOCK) --extra dev -c requirements.txt pyproject.toml -o requirements-dev.txt
	@$(LOCK) requirements-build.in -o requirements-build.txt
	@$(LOCK) requirements-docs.in -o requirements-docs.txt
