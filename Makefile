# Every target does its own set-up: finds a Python, makes .venv, installs the locked packages.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

PORT := 3000
# Two of the machine's processors run tests at a time, a file on one of them.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help install demo dev test test-all test-slow test-long test-browser drill bench lint format lock clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s%s\n", $$1, $$2}'

install: $(INSTALLED) ## Make .venv and install the locked packages.

$(INSTALLED): requirements.lock pyproject.toml
	@PYTHON=$$(PYTHON="$(PYTHON)" sh .ci/find-python) && echo "installing into $(VENV) with $$($$PYTHON --version)" && \
	( [ -x $(BIN)/python ] || $$PYTHON -m venv $(VENV) ) && \
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r .ci/uv.lock && \
	( $(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.lock || \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock ) && \
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e . && \
	( $(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true ) && touch $(INSTALLED)

demo: $(INSTALLED) ## Run the tutorial experiment: raw text to evaluated checkpoints, in minutes on two cores.
	@$(BIN)/marin materialize tutorial

dev: $(INSTALLED) ## Open the Dagster UI on this project, on http://127.0.0.1:3000 (or PORT=…).
	@$(BIN)/marin dev --port $(PORT)

test: $(INSTALLED) ## Run the default test suite.
	@$(PYTEST) -m "not slow and not browser and not long and not drill"

test-browser: $(INSTALLED) ## Run the tests that drive the web UI in headless Chromium.
	@$(BIN)/python -m pytest -m browser

test-all: $(INSTALLED) ## Run every test, the slow ones and the browser's included, but for what takes many minutes.
	@$(PYTEST) -m "not long and not drill"

test-slow: $(INSTALLED) ## Run what `make test` leaves out, but for what takes many minutes.
	@$(PYTEST) -m "(slow or browser) and not long and not drill"

test-long: $(INSTALLED) ## Run the tests that take many minutes: long reference runs of balancers.
	@$(PYTEST) --timeout 3600 -m long

drill: $(INSTALLED) ## Kill builders and jobs 500 times at random instants, and break trainings in a dozen ways; prints both tables.
	@$(BIN)/python -m tests.faults.drill --kills 500 --store both
	@$(BIN)/python -m tests.train.drill

bench: $(INSTALLED) ## Measure everything beside its peers, which are installed into throwaway environments.
	@for name in executor balance dispatch moe_step checkpoint balancers; do $(BIN)/python -m benchmarks.$$name || exit; done

lint: $(INSTALLED) ## Check style and types.
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(INSTALLED) ## Format the code.
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

lock: $(INSTALLED) ## Resolve pyproject.toml anew into requirements.lock.
	@$(BIN)/uv pip compile -q --no-config --python-version 3.12 --universal --no-strip-extras --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --extra dev pyproject.toml -o requirements.lock

clean: ## Remove the environment and caches; artifacts in .store and runs in .dagster stay.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
