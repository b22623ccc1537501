# Everything a person or CI runs. `make` alone lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Rows of the engine's batch compute alone; more threads than cores only make tests fight each other.
export OMP_NUM_THREADS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types contracts floor unit services backends proto bench gpu clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "otelctx needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP)-%: pyproject.toml | $(VENV)/bin/python
	@echo "Installing otelctx[$*] into $(VENV): torch is most of it, a few minutes, once"
	$(BIN)/pip install --quiet --editable '.[$*]'
	@touch $@

demo: $(STAMP)-demo ## one traced conversation through three processes; JAEGER=1 shows it in a real Jaeger
ifdef JAEGER
	scripts/backends build
	$(BIN)/otelctx demo --jaeger
else
	$(BIN)/otelctx demo
endif

# The oldest versions run first: what CI reads last is the summary of the whole suite.
test: $(STAMP)-dev services backends lint types contracts floor ## everything CI runs: backends, linters, types, layers, the whole suite
	$(BIN)/python -m pytest

check: $(STAMP)-dev lint types contracts unit ## linters, types, layers and the unit tests that need no backend and no weights

lint: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)-dev
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/typing/api.py

contracts: $(STAMP)-dev
	$(BIN)/lint-imports --no-cache

unit: $(STAMP)-dev
	$(BIN)/python -m pytest -q -n auto -m 'not e2e and not model and not gpu'

FLOOR := .venv-floor
# What stands on OpenTelemetry, clients, servers and protobuf. The fake engine needs torch.
FLOOR_TESTS := $(wildcard $(addprefix tests/,asgi auto beside clients context delta/test_codec.py grpc sdk telemetry testing)) \
  --ignore tests/testing/test_fake_engine.py
# Said by old versions about each other.
FLOOR_QUIET := -W "ignore:websockets:DeprecationWarning" -W ignore::ResourceWarning

$(FLOOR)/.installed: pyproject.toml scripts/floor
	$(PYTHON) -m venv --clear $(FLOOR)
	scripts/floor > $(FLOOR)/constraints.txt
	@echo "Installing the oldest versions that pyproject.toml permits into $(FLOOR): half a minute"
	$(FLOOR)/bin/pip install --quiet --constraint $(FLOOR)/constraints.txt --editable '.[floor]'
	@touch $@

floor: $(FLOOR)/.installed ## tests that stand on OpenTelemetry, clients and servers, with the oldest versions permitted
	$(FLOOR)/bin/python -m pytest -q -n 2 -p no:cacheprovider $(FLOOR_QUIET) $(FLOOR_TESTS)

backends: ## build the collector and Jaeger into the user's cache (needs Go; about nine minutes, once)
	@if command -v go >/dev/null; then scripts/backends build; \
	elif [ "$$OTELCTX_E2E" = required ]; then echo "OTELCTX_E2E=required, but there is no Go to build the collector and Jaeger with"; exit 1; \
	else echo "*** No Go on this machine: the tests against the real collector and Jaeger will be SKIPPED ***"; fi

services: ## nginx and Redis for the end-to-end tests, from the distribution
	@scripts/services

proto: $(VENV)/bin/python ## generate the protobuf code anew
	scripts/proto

bench: $(STAMP)-dev ## run one benchmark: make bench NAME=delta
	$(BIN)/python -m benchmarks $(NAME)

gpu: $(STAMP)-dev ## checks and benchmarks on a CUDA device, under eight minutes; JSON
	$(BIN)/python scripts/gpu

# How long, and what else `python -m scripts.soak -h` lists: make soak SOAK_MINUTES=5 SOAK_OPTIONS='--model smollm2'
SOAK_MINUTES ?= 30
soak: $(STAMP)-dev backends ## half an hour of load, failures and outages on a real worker, then what must hold is checked
	$(BIN)/python -m scripts.soak --minutes $(SOAK_MINUTES) $(SOAK_OPTIONS)

clean: ## remove the virtual environment and caches of the tree
	rm -rf $(VENV) $(FLOOR) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
