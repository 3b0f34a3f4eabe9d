# Everything a person or CI does here. Bare `make` prints this help.
#
# PYTHON  the interpreter that the environment is made from (3.11 or newer)
# VENV    where the environment lives; CI uses a fresh one outside the checkout
# KIND    1: cluster tests run on a kind cluster (needs Docker and kind) instead of our control plane
# KIND_IMAGE, KIND_CONFIG  the nodes' image (empty: kind's own), what is given to kind as --config
# BASE_IMAGE, IMAGE  what the operator's image is built on (glibc, Python 3.11 or newer, pip), its name;
#         with KIND=1, an IMAGE that you name is taken as it is
# FUZZ_SECONDS  how long each target of the fuzzer is run
PYTHON ?= python3
VENV ?= .venv
KIND ?=
KIND_IMAGE ?=
KIND_CONFIG ?=
BASE_IMAGE ?= python:3.13-slim
IMAGE ?= archipelago-operator:0.1.0
FUZZ_SECONDS ?= 60

export IMAGE KIND_IMAGE KIND_CONFIG

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Before activation: the commands below must work in a plain shell.
BIN := $(abspath $(VENV))/bin
PY := $(BIN)/python
READY := $(VENV)/.ready
PYTEST := $(PY) -m pytest
CRD := crds/archipelago.dev_servingplans.yaml
PAGE := docs/serving-plan.md
DASHBOARD := deploy/monitoring/dashboard.json
PINS := deploy/image/requirements.txt
UV = $(shell uv --version >/dev/null 2>&1 && echo uv || echo $(BIN)/uv)

.PHONY: help
help: ## print this help
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## create .venv, pinned by constraints.txt; get the test control plane and Prometheus
	$(PY) -m tests.controlplane ensure
	@helm version >/dev/null 2>&1 || $(PY) -m tests.controlplane ensure helm || \
	  echo "no helm: tests of the chart will be skipped"
	@{ kwok --version && kube-scheduler --version; } >/dev/null 2>&1 || \
	  $(PY) -m tests.controlplane ensure kwok kube-scheduler || \
	  echo "no KWOK: tests on nodes that report and run pods will be skipped"
	@(cd tests/deploy/definitions && GOWORK=off go mod download) >/dev/null 2>&1 || \
	  echo "no definitions of prometheus-operator: tests of the monitors will be skipped"
	@$(PY) -m tests.prometheus ensure || echo "no Prometheus: tests that need one will be skipped"

# Made again only when the pins or the dependencies change. uv where it works, else uv by pip.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11: say make setup PYTHON=python3.12"; exit 1; }
	@test -x $(PY) || { echo "creating $(VENV)"; rm -rf "$(VENV)"; $(PYTHON) -m venv "$(VENV)"; }
	@uv=uv; uv --version >/dev/null 2>&1 || { uv=$(BIN)/uv; $(PY) -m pip install --quiet uv; }; \
	  $$uv pip install --quiet --python $(PY) --constraints constraints.txt \
	    --editable '.[operator,plot,validate]' --group dev
	@touch $@

.PHONY: check
check: $(READY) audit ## ruff, formatting, mypy strict, import contracts, bandit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: audit
audit: $(READY) ## bandit, with every finding that is none explained
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml operator planner perfmodel deploy

.PHONY: unit
unit: $(READY) ## tests that need no cluster
	$(PYTEST) -n auto --dist worksteal -m 'not cluster'

# On kind the operator runs from its image: one of what is checked out, unless IMAGE names another.
IMAGE_OF_KIND := $(if $(KIND),$(if $(filter file,$(origin IMAGE)),image))
.PHONY: e2e
# Three control planes side by side, each with whole files, the longest first: these tests mostly
# wait. Other files are not even read: that alone takes each process ten seconds.
CLUSTER_TESTS = $(shell grep -rl 'mark\.cluster' tests --include='test_*.py')
e2e: $(READY) $(IMAGE_OF_KIND) ## tests on a real API server; KIND=1 runs them on a kind cluster
	$(PYTEST) -m cluster $(if $(KIND),--kind,-n 3 --dist loadfile --no-loadscope-reorder) \
	  $(CLUSTER_TESTS)

.PHONY: faults
faults: $(READY) ## every fault at full length: outages of 75 s and 10 min, all writes; 17 minutes
	$(PYTEST) tests/faults --faults -s

.PHONY: recovery
recovery: $(READY) ## play every fault five times and write docs/recovery.md; up to 20 minutes
	$(PY) -m tests.faults.recovery > docs/recovery.md.new && mv docs/recovery.md.new docs/recovery.md

.PHONY: test
test: unit e2e ## every test: unit, then cluster; about 20 minutes on two cores

.PHONY: demo
demo: setup ## control plane, operator, first example, plan, table and plot; Ctrl-C ends it
	$(PY) -m tests.demo $(if $(DEMO_EXIT),--once)

.PHONY: bench
bench: $(READY) ## the benchmarks: size, seconds, gap, memory
	$(PY) -m benchmarks.run

.PHONY: validate
validate: $(READY) ## the performance model beside published measurements: writes docs/accuracy.md
	$(BIN)/archipelago validate --quiet --page docs/accuracy.md || test $$? -eq 1  # 1: a bar is missed

.PHONY: fuzz
fuzz: $(READY) ## a coverage-guided fuzzer on everything that reads files, FUZZ_SECONDS=60 each
	@$(UV) pip install --quiet --python $(PY) --group fuzz || echo "atheris cannot be installed here"
	$(PY) -m tests.fuzz --seconds $(FUZZ_SECONDS)

.PHONY: soak
soak: $(READY) ## load, idleness, attack, changes and faults; DURATION=120 minutes by default
	$(PY) -m tests.soak --minutes $(or $(DURATION),120) --out build/soak

.PHONY: transitions
transitions: $(READY) ## more than 10,000 changes from one spec to another, 2,400 lives of a plan; minutes
	TRANSITIONS=$(or $(TRANSITIONS),12500) TRANSITION_VARIANTS=100000 LIVES=300 \
	  $(PYTEST) -s tests/operator/test_transitions.py tests/operator/test_convergence.py

.PHONY: crds
crds: $(READY) ## write crds/ and docs/serving-plan.md anew from the schema models
	$(PY) -m archipelago.operator.crd > $(CRD).new && mv $(CRD).new $(CRD)
	$(PY) -m archipelago.operator.reference > $(PAGE).new && mv $(PAGE).new $(PAGE)

.PHONY: monitoring
monitoring: $(READY) ## write the alert rules and the Grafana dashboard anew
	$(PY) -m archipelago.operator.alerts deploy
	$(PY) -m archipelago.operator.dashboard > $(DASHBOARD).new && mv $(DASHBOARD).new $(DASHBOARD)

.PHONY: image
image: $(READY) ## the operator's image, from wheels compared with their pinned hashes (needs Docker)
	$(PY) deploy/image/prepare.py build/image --base $(BASE_IMAGE)
	docker build --network none --build-arg BASE_IMAGE=$(BASE_IMAGE) --tag $(IMAGE) build/image

.PHONY: sbom
sbom: $(READY) ## the list of what the image is made of, as CycloneDX: build/sbom/sbom.cdx.json
	$(PY) deploy/image/prepare.py build/sbom --materials

.PHONY: pins
pins: $(READY) ## write the image's pinned hashes anew from constraints.txt (asks the registry)
	$(UV) pip compile --quiet pyproject.toml --extra operator --constraint constraints.txt --universal \
	  --python-version 3.11 --generate-hashes --only-binary :all: --no-emit-index-url --no-annotate \
	  --no-header --output-file $(PINS)

.PHONY: clean
clean: ## remove the environment, build outputs and the demo's leftovers
	rm -rf .venv .demo build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
