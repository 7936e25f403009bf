# The two commands are `make serve` and `make test`; `make` alone lists all.
#
# Paths stay relative and quoted: make cannot hold a path with a space in a variable that it splits.
# Recipes call the environment by its real path, since .venv may be a link to a place without spaces.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
ASCEND_VENV ?= .venv-ascend
MODEL ?=
PORT ?= 8000
ARGS ?=
PLATFORM ?= xyserve
ONCE ?=
VERBOSE ?=
TESTS ?= tests
TEST_ARGS ?=

setup_py = $(PYTHON) -m deploy.setup --venv "$(VENV)"
real_bin = "$$(cd -P "$(VENV)" && pwd -P)/bin"
python = $(real_bin)/python
ascend_python = "$$(cd -P "$(ASCEND_VENV)" && pwd -P)/bin/python"
csrc_files = find csrc -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cpp' \) -print0

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev serve test test-ascend test-ascend-kernels test-ascend-plugin bench-serve profile check format clean

help: ## List the commands
	@echo "make serve [MODEL=folder-or-hub-id] [PORT=8000] [ARGS='more for vllm serve']"
	@echo "           [ONCE=1: stop after the answer] [VERBOSE=1: show the log] [PLATFORM=none: stock]"
	@echo "make test  [TESTS=tests/setup] [TEST_ARGS='-k name']"
	@echo "All:       [PYTHON=python3.12] [VENV=an environment of yours]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s%s\n", $$1, $$2}' Makefile

setup: ## Environment, vLLM's CPU build, native library, demo model
	@$(setup_py)

setup-dev:
	@$(setup_py) --dev

serve: export MODEL := $(MODEL)
serve: export PORT := $(PORT)
serve: export ARGS := $(ARGS)
serve: export PLATFORM := $(PLATFORM)
serve: export ONCE := $(ONCE)
serve: export VERBOSE := $(VERBOSE)
serve: ## Set up, start vLLM on the xyserve platform, show an answer, stay until Ctrl-C
	@$(PYTHON) -m deploy.serve --check
	@$(setup_py) $(if $(strip $(MODEL)),--no-model)
	@exec $(python) -m deploy.serve

# Engines and servers use both cores by themselves; all else runs in two processes. Exit status 5 is
# "no test selected", as TEST_ARGS='-k name' may leave one of the two.
test: setup-dev ## Set up with the development tools, then run all tests
ifeq ($(TESTS),tests)
	@run() { $(python) -m pytest "$$@" $(TEST_ARGS) || [ $$? -eq 5 ]; }; status=0; \
	OMP_WAIT_POLICY=passive run tests -n 2 --dist loadfile --ignore tests/engine --ignore tests/server \
	    || status=1; \
	run tests/engine tests/server || status=1; \
	exit $$status
else
	@$(python) -m pytest $(TESTS) $(TEST_ARGS)
endif

test-ascend: test-ascend-kernels test-ascend-plugin ## Both of the following

test-ascend-kernels: setup-dev ## Ascend kernels on the emulation: the full tables
	@$(python) -m pytest tests/ascend -m "ascend_full or not ascend_full" $(TEST_ARGS)

test-ascend-plugin: ## The NPU family on vLLM 0.23.0 and vllm-ascend 0.23.0, without an NPU
	@$(PYTHON) -m deploy.ascend --venv "$(ASCEND_VENV)"
	@$(ascend_python) -m pytest tests/ascend_plugin $(TEST_ARGS)
	@VLLM_PLUGINS= $(ascend_python) -m pytest tests/prefix $(TEST_ARGS)

bench-serve: setup-dev ## Traffic against stock vLLM and ours, with a report: ARGS=--quick takes 5 minutes, else 90
	@exec $(python) -m benchmarks.serve $(ARGS)

profile: setup-dev ## Where a decode step, a prefill step and a start go, for stock vLLM and ours
	@exec $(python) -m benchmarks.profile $(ARGS)

check: ## Format, lint, types, import rules, C++ format; changes nothing
	@$(setup_py) --dev --no-model
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy
	$(python) -m mypy deploy examples
	$(python) -m pytest -q tests/unit/test_import_rules.py
	$(csrc_files) | xargs -0 -r $(real_bin)/clang-format --dry-run -Werror

format: ## Format Python and C++ and mend what the linter can
	@$(setup_py) --dev --no-model
	$(python) -m ruff check --fix --exit-zero --quiet .
	$(python) -m ruff format .
	$(csrc_files) | xargs -0 -r $(real_bin)/clang-format -i

clean: ## Remove build products and caches; environment and model stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -type d -name __pycache__ -print0 | xargs -0 -r rm -rf
