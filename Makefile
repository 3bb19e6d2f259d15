# Arguments go through ARGS: make train ARGS="algo=apo model=tiny", make lab ARGS="worlds=[locks_a]"
python := .venv/bin/python
ARGS ?=
EXTRA ?=
# Three on two cores, since tests also wait for processes and disks.
PROCESSES ?= 3
PYTHON ?= python3

# Tests and checks load nothing from the hub: on a closed network each attempt would wait for its retries.
test test-all check docs: export HF_HUB_OFFLINE := 1
test test-all check docs: export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help setup train lab gpu test test-all check format lint types layers extras examples docs clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Make .venv, once (EXTRA=cpu|vllm chooses the engine, PYTHON=python3.12 the interpreter)
	@EXTRA="$(EXTRA)" PYTHON="$(PYTHON)" bash scripts/setup.sh

train: setup  ## Train: ARGS="algo=apo model=tiny …" are Hydra overrides
	@$(python) -m apo_lightning train $(ARGS)

lab: setup  ## Train six methods on two small worlds, three seeds each, and compare them on one page (half an hour)
	@$(python) -m apo_lightning lab $(ARGS)

gpu: setup  ## Check one GPU: one table, in under 25 minutes; smaller on a CPU (ARGS="first --minutes 6")
	@$(python) -m benchmarks.gpu $(ARGS)

# With more threads than cores, processes wait for one another.
test test-all: export OMP_NUM_THREADS := 1
test: setup  ## Run the tests but the long demonstrations, PROCESSES at once; ARGS go to pytest
	@$(python) -m pytest --numprocesses=$(PROCESSES) --dist=worksteal -m "not long" $(ARGS)

test-all: setup  ## Run all tests, as CI does
	@$(python) -m pytest --numprocesses=$(PROCESSES) --dist=worksteal $(ARGS)

check: format lint types layers extras examples docs  ## Formatting, lint, types, import layers, extras, the examples in docstrings and docs, the site

format: setup
	.venv/bin/ruff format --check .

lint: setup
	.venv/bin/ruff check .

types: setup
	.venv/bin/pyright

layers: setup
	.venv/bin/lint-imports

extras: setup
	@PYTHON=$(python) bash scripts/resolve.sh

examples: setup
	$(python) -m pytest --quiet --doctest-modules --doctest-glob='*.md' -p no:cacheprovider src $(wildcard README.md) docs

docs: setup  ## Build the documentation site: build/site/index.html
	$(python) -m sphinx --quiet --fresh-env --nitpicky --fail-on-warning docs build/site

clean:  ## Remove .venv, caches and build products; outputs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	find src tests -name __pycache__ -prune -exec rm -rf {} +
