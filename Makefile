# Everything that a person or CI runs here. Bare `make` prints the targets.
#
# PYTHON  the interpreter that the environment is made from (3.11 or newer)
# VENV    where the environment is; CI uses a new one outside the checkout
# EXTRAS  more extras of pyproject.toml for the environment and the image, such as bayes
# KIND    1: cluster tests run on a kind cluster (needs Docker and kind) instead of our control plane
# KIND_IMAGE, KIND_CONFIG  the nodes' image (empty: kind's own), what is given to kind as --config
# BASE_IMAGE, IMAGE  what the operator's image is built on (glibc, Python 3.11 or newer, pip), and its
#         name; with KIND=1, an IMAGE that you name is not built
# TORCH_INDEX  where the image with EXTRAS=bayes gets torch: an index of builds without CUDA. Empty:
#         the index of everything else, whose build for Linux brings gigabytes of CUDA
# DEMO_EXIT  1: the demo ends when everything was shown
# FUZZ_SECONDS  how long each target of the fuzzer is run
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?=
KIND ?=
KIND_IMAGE ?=
KIND_CONFIG ?=
BASE_IMAGE ?= python:3.13-slim
IMAGE ?= archipelago-operator:0.1.0$(if $(filter bayes,$(EXTRAS)),-bayes)
TORCH_INDEX ?=
FUZZ_SECONDS ?= 60

export IMAGE KIND_IMAGE KIND_CONFIG

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

# Before activation: the commands below must work in a plain shell.
BIN := $(abspath $(VENV))/bin
PY := $(BIN)/python
comma := ,
READY := $(VENV)/.ready$(addprefix -,$(subst $(comma),-,$(EXTRAS)))
PYTEST := $(PY) -m pytest
CRD := crds/archipelago.dev_servingplans.yaml
PAGE := docs/reference/serving-plan.md
PINS := deploy/image/requirements.txt
UV = $(shell uv --version >/dev/null 2>&1 && echo uv || echo $(BIN)/uv)

.PHONY: help
help: ## print the targets
	@awk 'BEGIN { FS = ":.*##\\*? " } /^[a-z0-9-]+:.*##\* / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo; echo more:
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The control plane's programs, downloaded or built, while Prometheus is downloaded.
define programs
	@$(PY) -m tests.support.prometheus ensure || echo "no Prometheus: what needs one is left out" & \
	  $(PY) -m tests.support.controlplane ensure $(1) && wait
endef

.PHONY: setup
setup: $(READY) ##* the environment, pinned by constraints.txt, and all programs of the tests
	$(call programs,--optional)
	@(cd tests/deploy/definitions && GOWORK=off go mod download) >/dev/null 2>&1 || \
	  echo "no definitions of prometheus-operator: tests of the monitors will be skipped"

# Made again only if the pins or the dependencies change. By uv if it works, else by uv from pip.
$(READY): pyproject.toml constraints.txt constraints-bayes.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11: run make setup PYTHON=python3.12"; exit 1; }
	@test -x $(PY) || { echo "creating $(VENV)"; rm -rf "$(VENV)"; $(PYTHON) -m venv "$(VENV)"; }
	@uv=uv; uv --version >/dev/null 2>&1 || { uv=$(BIN)/uv; $(PY) -m pip install --quiet --disable-pip-version-check uv; }; \
	  $$uv pip install --quiet --python $(PY) --constraints constraints.txt \
	    --constraints constraints-bayes.txt --group dev --group docs \
	    --editable '.[operator,plot,validate$(addprefix $(comma),$(EXTRAS))]'
	@touch $@

.PHONY: check
check: $(READY) audit ##* ruff, mypy strict, import contracts, bandit, English and Markdown
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	VENV=$(VENV) .ci/prose

.PHONY: audit
audit: $(READY) ## bandit, with every finding that is none explained
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml operator planner perfmodel deploy

.PHONY: docs
docs: $(READY) ##* the site of the pages, built strictly into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Each of the three does its own set-up, so that it runs from a clone with nothing else.
.PHONY: test-fast
test-fast: $(READY) ## unit tests that are not slow; no cluster, 2 minutes
	$(PYTEST) -n auto --dist worksteal -m 'not cluster and not slow'

.PHONY: test
test: setup test-fast e2e ##* the tests of a change, on a control plane of this machine; 15 minutes

.PHONY: test-all
test-all: test slow faults ## every test: also the slow ones, and the faults at full length

.PHONY: slow
slow: $(READY) ## the slow tests: whole scenarios, papers, searches of the extra bayes; then on a cluster
	$(PYTEST) -n auto --dist worksteal -m 'slow and not cluster'
	$(PYTEST) -n 3 --dist loadfile -m 'slow and cluster' \
	  $(shell grep -rl 'mark\.cluster' tests --include='test_*.py')

.PHONY: unit
unit: $(READY) ## every test that needs no cluster
	$(PYTEST) -n auto --dist worksteal -m 'not cluster'

# On kind the operator runs from its image: one of what is checked out, unless IMAGE names another.
IMAGE_OF_KIND := $(if $(KIND),$(if $(filter file,$(origin IMAGE)),image))
.PHONY: e2e
# Three control planes side by side, each with whole files, the longest first: these tests mostly
# wait. Other files are not even read: that alone takes each process ten seconds.
LONGEST := tests/docs/test_typed_on_a_cluster.py
CLUSTER_TESTS = $(LONGEST) \
  $(filter-out $(LONGEST),$(shell grep -rl 'mark\.cluster' tests --include='test_*.py'))
e2e: $(READY) $(IMAGE_OF_KIND) ## tests on a real API server; KIND=1 runs them on a kind cluster
	$(PYTEST) -m 'cluster and not slow' $(if $(KIND),--kind,-n 3 --dist loadfile --no-loadscope-reorder) \
	  $(CLUSTER_TESTS)

# Not part of `make test`: the programs of an older release are built from source, five minutes each.
MATRIX ?= 1.34 1.35 1.36
MATRIX_TESTS ?= $(CLUSTER_TESTS)
.PHONY: matrix
matrix: $(READY) ## the tests on an API server with each supported release of Kubernetes; half an hour
	for minor in $(MATRIX); do export KUBERNETES_MINOR=$$minor; \
	  $(PY) -m tests.support.controlplane ensure --optional && \
	  $(PYTEST) -m 'cluster and not slow' -n 3 --dist loadfile --no-loadscope-reorder \
	    $(MATRIX_TESTS) || exit 1; done

.PHONY: faults
faults: $(READY) ## every fault at full length: outages of 75 s and 10 min, all writes; 17 minutes
	$(PYTEST) tests/faults --faults -s

.PHONY: recovery
recovery: $(READY) ## play every fault five times and write docs/evidence/recovery.md; up to 20 minutes
	$(PY) -m benchmarks.recovery > docs/evidence/recovery.md.new && mv docs/evidence/recovery.md.new docs/evidence/recovery.md

.PHONY: demo
demo: $(READY) $(IMAGE_OF_KIND) ##* control plane, operator, first example, plan, table and plot; KIND=1: and pods
	$(call programs)
	$(PY) -m examples.demo $(if $(DEMO_EXIT),--once) $(if $(KIND),--kind)

.PHONY: bench
bench: $(READY) ## the benchmarks: size, seconds, gap, memory
	$(PY) -m benchmarks.run

.PHONY: drawn
drawn: $(READY) ## specs drawn from SEED (this month), planned and shown by stratum: build/drawn; 8 minutes
	$(PY) -m benchmarks.drawn $(addprefix --seed ,$(SEED)) --plot build/drawn/profile.svg

.PHONY: validate
validate: $(READY) ## the performance model beside published measurements: writes docs/evidence/accuracy.md and more
	$(PY) -m benchmarks.accuracy.defaults ../shared/data --page docs/evidence/accuracy.md || test $$? -eq 1  # 1: a bar is missed
	$(PY) -m benchmarks.accuracy --quiet --page docs/evidence/accuracy/comparisons.md || test $$? -eq 1

.PHONY: fuzz
fuzz: $(READY) ## a coverage-guided fuzzer on every reader of foreign bytes, FUZZ_SECONDS=60 each
	@$(UV) pip install --quiet --python $(PY) --group fuzz || echo "atheris cannot be installed here"
	$(PY) -m tests.support.fuzz --seconds $(FUZZ_SECONDS)

.PHONY: soak
soak: $(READY) ## load, idleness, attack, changes and faults; DURATION=120 minutes by default
	$(PY) -m benchmarks.soak --minutes $(or $(DURATION),120) --out build/soak

.PHONY: transitions
transitions: $(READY) ## more than 10,000 changes from one spec to another, 2,400 lives of a plan; minutes
	TRANSITIONS=$(or $(TRANSITIONS),12500) TRANSITION_VARIANTS=100000 LIVES=300 \
	  $(PYTEST) -s tests/operator/decide/test_transitions.py tests/operator/decide/test_convergence.py

.PHONY: crds
crds: $(READY) ## write crds/ and docs/reference/serving-plan.md anew from the schema models
	$(PY) -m archipelago.operator.resources.crd > $(CRD).new && mv $(CRD).new $(CRD)
	$(PY) -m archipelago.operator.resources.crd --page > $(PAGE).new && mv $(PAGE).new $(PAGE)

.PHONY: image
image: ##* the operator's image, from source (needs Docker)
	docker build --build-arg BASE_IMAGE=$(BASE_IMAGE) --tag $(IMAGE) \
	  --build-arg EXTRAS=operator$(addprefix $(comma),$(EXTRAS)) --build-arg TORCH_INDEX=$(TORCH_INDEX) .

.PHONY: image-offline
image-offline: $(READY) ## the same image without network while it is built, with a list of materials
	$(PY) deploy/image/prepare.py build/image --base $(BASE_IMAGE) \
	  $(if $(EXTRAS),--extra $(EXTRAS))
	docker build --network none --build-arg BASE_IMAGE=$(BASE_IMAGE) --tag $(IMAGE) build/image

.PHONY: sbom
sbom: $(READY) ## the list of what the image is made of, as CycloneDX: build/sbom/sbom.cdx.json
	$(PY) deploy/image/prepare.py build/sbom --materials

# Pins stay as they are unless pyproject.toml or UPGRADE=1 requires others.
COMPILE = $(UV) pip compile --quiet pyproject.toml --universal --python-version 3.11 \
  --no-emit-index-url --no-annotate --no-header
.PHONY: pins
pins: $(READY) ## write every pin anew from pyproject.toml (asks the registry); UPGRADE=1: the newest
	$(COMPILE) $(if $(UPGRADE),--upgrade) --extra operator --extra plot --extra validate \
	  --group dev --group docs --output-file constraints.txt
	mkdir -p build && cp constraints-bayes.txt build/bayes.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) --extra bayes --constraint constraints.txt \
	  --output-file build/bayes.txt
	grep -vxFf constraints.txt build/bayes.txt > constraints-bayes.txt
	$(COMPILE) --extra operator --constraint constraints.txt --generate-hashes \
	  --only-binary :all: --output-file $(PINS)
	$(COMPILE) --extra operator --extra bayes --constraint constraints.txt \
	  --constraint constraints-bayes.txt --generate-hashes --only-binary :all: \
	  --output-file $(PINS:.txt=-bayes.txt)

.PHONY: clean
clean: ## remove the environment, build outputs and the demo's leftovers
	rm -rf .venv .demo build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
