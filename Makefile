# Every target does its own set-up. Needed: Python >= 3.11 with venv, a C compiler, make.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# The first interpreter that is new enough; PYTHON=... overrides.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
# pip shows how far it is where somebody looks, and nothing but errors elsewhere.
QUIET := $(shell test -t 2 || echo --quiet)

.PHONY: help setup docs demo test test-long mutants native selftest selftest-bundle e2e e2e-long test-cluster bench soak check generate image lock audit clean

help:
	@echo "make demo      a whole cluster on this machine: joint GPU+NIC claims, from manifest to container"
	@echo "make test      unit, property and conformance tests: about twelve minutes on two cores"
	@echo "make test-long the same with long explorations, processes, demos, and all examples of property tests"
	@echo "make mutants   do the tests notice small errors? named ones and 400 others (MUTANTS=--all: every one)"
	@echo "make native    the memory limiter: build it and run its C tests"
	@echo "make selftest  what koordra gives containers, tried on this machine's GPU (SELFTEST='--report r.tar.gz')"
	@echo "make selftest-bundle  build/selftest: the same for a machine with a GPU and nothing else"
	@echo "make check     ruff, mypy --strict, vulture, layering, generated code; prints size and growth"
	@echo "make e2e       against a real containerd (root; fetched privately from Debian)"
	@echo "make test-cluster  against the devcluster, or the cluster of KUBECONFIG"
	@echo "make bench     ratios against plain implementations"
	@echo "make soak      the property tests, for much longer (SOAK_EXAMPLES=20000), and 100,000 schedules of the models"
	@echo "make image     the container image, with docker, podman or buildah, and its bill of materials"
	@echo "make docs      these pages as a site, build/site; every link is checked"
	@echo "make lock      pin anew what requirements/ locks (LOCK=--upgrade: the newest of everything)"
	@echo "make audit     known vulnerabilities of what is locked; reports, stops nothing"

setup: $(READY)

# What koordra runs with is a third of what its tests need: the demo of a new checkout waits for no more.
$(RUNS): requirements/run.txt
$(READY): requirements/dev.txt
$(RUNS) $(READY): pyproject.toml devcluster/pyproject.toml
	@test -n "$(PYTHON)" || { echo "koordra needs Python >= 3.11; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module; on Debian install python3-venv" >&2; exit 1; }
	@echo "$(VENV): an environment of $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "$(VENV): $$(grep -c '^[a-z].*==' $(filter %.txt,$^)) packages, a minute or two" >&2
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --require-hashes --requirement $(filter %.txt,$^)
	@echo "$(VENV): koordra itself"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable ./devcluster
	@touch $@

demo: $(or $(wildcard $(READY)),$(RUNS))
	$(BIN)/koordra demo

test: setup
	scripts/test unit

test-long: setup
	scripts/test long

mutants: setup
	$(BIN)/python -m tests.mutants $(MUTANTS)

e2e: setup
	scripts/test e2e

e2e-long: setup
	scripts/test e2e-long

test-cluster: setup
	scripts/test cluster

bench: setup
	$(BIN)/python -m benchmarks
	$(MAKE) -C native bench

check: setup
	scripts/check

generate: setup
	$(BIN)/python proto/generate.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

soak: setup
	scripts/test soak
	$(BIN)/python -m tests.soak --schedules $${SOAK_SCHEDULES:-100000}
	$(MAKE) -C native soak

native: setup
	$(MAKE) -C native test

selftest-bundle: setup
	$(BIN)/python scripts/selftest_bundle.py

selftest: selftest-bundle
	build/selftest/run $(SELFTEST)

image: build/tools/.ready
	build/tools/bin/python scripts/sbom.py build/koordra.cdx.json $(BASE)
	scripts/image

lock: build/tools/.ready
	scripts/lock $(LOCK)

audit: build/tools/.ready
	build/tools/bin/python scripts/audit.py

# The programs of lock, audit and image: apart from what the tests run with.
build/tools/.ready: $(READY) requirements/tools.txt
	$(BIN)/python -m venv --clear build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/tools.txt
	@touch $@

docs: build/docs/.ready
	$(BIN)/python scripts/site.py
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict
	@echo "docs: build/site/index.html"

build/docs/.ready: $(READY) requirements/docs.txt
	$(BIN)/python -m venv --clear build/docs
	build/docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/docs.txt
	@touch $@
