# Every target does its own set-up: finds a Python, makes .venv, installs the locked packages.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

PORT := 3000
# Three workers on two processors, since many tests wait for processes of theirs; a file runs in one worker, the longest files first.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 30

.DEFAULT_GOAL := help
.PHONY: help install demo dev test test-all test-slow test-long test-browser test-kubernetes drill bench lint format lock clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s%s\n", $$1, $$2}'

install: $(INSTALLED) ## Make .venv and install the locked packages.

$(INSTALLED): requirements.lock pyproject.toml
	@PYTHON=$$(PYTHON="$(PYTHON)" sh .ci/find-python) && echo "installing into $(VENV) with $$($$PYTHON --version)" && \
	( [ -x $(BIN)/python ] || $$PYTHON -m venv $(VENV) ) && \
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r .ci/uv.lock && \
	( $(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.lock || \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements.lock ) && \
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e . && \
	( $(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true ) && touch $(INSTALLED)

demo: $(INSTALLED) ## Run the tutorial experiment: raw text to evaluated checkpoints, in minutes on two cores.
	@$(BIN)/marin materialize tutorial

dev: $(INSTALLED) ## Open the Dagster UI on this project, on http://127.0.0.1:3000 (or PORT=…).
	@$(BIN)/marin dev --port $(PORT)

test: $(INSTALLED) ## Run the default test suite.
	@$(PYTEST) -m "not slow and not browser and not long and not drill and not kubernetes"

test-browser: $(INSTALLED) ## Run the tests that drive the web UI in headless Chromium.
	@$(BIN)/python -m pytest -m browser

test-all: $(INSTALLED) ## Run every test, the slow ones and the browser's included, but for what takes many minutes.
	@$(PYTEST) -m "not long and not drill and not kubernetes"

test-slow: $(INSTALLED) ## Run what `make test` leaves out, but for what takes many minutes.
	@$(PYTEST) -m "(slow or browser) and not long and not drill and not kubernetes"

test-long: $(INSTALLED) ## Run the tests that take many minutes: long reference runs of balancers.
	@$(PYTEST) --timeout 3600 -m "long and not kubernetes"

test-kubernetes: $(INSTALLED) ## Run the tests on a real control plane, built from Go modules the first time (26 CPU-minutes; needs Go).
	@$(BIN)/python -m tests.kubernetes.controlplane.build
	@$(BIN)/python -m pytest --durations 30 --timeout 900 -m "kubernetes and not long"

drill: $(INSTALLED) ## Kill builders and jobs 500 times at random instants, and break trainings in a dozen ways; prints both tables.
	@$(BIN)/python -m tests.faults.drill --kills 500 --store both
	@$(BIN)/python -m tests.train.drill

bench: $(INSTALLED) ## Measure everything beside its peers, which are installed into throwaway environments.
	@for name in executor balance dispatch moe_step checkpoint balancers data dedup tokenize automation orchestration launcher; do $(BIN)/python -m benchmarks.$$name || exit; done

lint: $(INSTALLED) ## Check style and types.
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(INSTALLED) ## Format the code.
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

RESOLVE := $(BIN)/uv pip compile -q --no-config --python-version 3.12 --universal --generate-hashes --no-emit-index-url --no-annotate --no-header
LOCKS := deploy/docker

lock: $(INSTALLED) ## Resolve pyproject.toml anew into requirements.lock, and what images hold of it into deploy/docker.
	@$(RESOLVE) --no-strip-extras --extra lab --extra dev --extra fast pyproject.toml -o requirements.lock
	@$(RESOLVE) -c requirements.lock --extra fast pyproject.toml -o $(LOCKS)/jobs.lock
	@for extra in cuda tpu lab; do $(RESOLVE) -c requirements.lock -c $(LOCKS)/jobs.lock --extra $$extra \
	  $$(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' $(LOCKS)/jobs.lock) pyproject.toml -o $(LOCKS)/$$extra.lock || exit; done

clean: ## Remove the environment and caches; artifacts in .store and runs in .dagster stay.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
