# Everything runs from .venv, which is made on first use and brought up to date when pyproject.toml changes.
BIN := .venv/bin
READY_DEV := .venv/.ready-dev
READY_DEMO := .venv/.ready-demo
# Tests wait for timers and processes about as long as they compute: two workers a core.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
PYTEST := $(BIN)/python -m pytest
BENCH_FILES := $(basename $(wildcard benchmarks/bench_*.py))
BENCH_FOLDERS := $(patsubst %/__main__.py,%,$(wildcard benchmarks/*/__main__.py))
# A folder with a file of its own name is run by that file.
BENCHMARKS := $(strip $(BENCH_FILES) $(filter-out $(subst /bench_,/,$(BENCH_FILES)),$(BENCH_FOLDERS)))

# pyright would ask the network whether it is the newest.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.NOTPARALLEL: # one .venv; pytest does its own parallel work
.PHONY: help demo test lint format bench soak clean system-packages

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY_DEMO) ## run the demo: an agent on a local model, no key and no network needed once set up
	@$(BIN)/python examples/demo.py

test: system-packages lint ## check everything: format, lint, types, import rules, sizes, tests, specification
	@# The tests start a thousand processes; each would compile everything again.
	@env -u PYTHONDONTWRITEBYTECODE $(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist worksteal

lint: $(READY_DEV) ## check everything that needs no test run
	@$(BIN)/ruff format --check --output-format concise . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/pyright
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }; echo "$$out" | tail -n 1
	@$(BIN)/python scripts/check_sizes.py

format: $(READY_DEV) ## format the code and apply the safe lint fixes
	@$(BIN)/ruff check --quiet --fix --exit-zero .
	@$(BIN)/ruff format .

bench: $(READY_DEV) ## run every benchmark: benchmarks/bench_*.py, and folders there with a __main__.py
	@$(if $(BENCHMARKS),,echo "no benchmarks yet" >&2; exit 1)
	@set -e; for module in $(subst /,.,$(BENCHMARKS)); do echo "== $$module"; $(BIN)/python -m $$module; done

soak: $(READY_DEV) ## run the long tests, minutes each, and the mutations that tests must notice
	@$(PYTEST) -m soak --timeout 3600 -n $(WORKERS) --maxprocesses 8 --dist worksteal
	@$(BIN)/python scripts/mutants.py

clean: ## remove .venv and everything that was made
	rm -rf .venv .demo dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

system-packages:
	@scripts/system_packages.sh

$(READY_DEV): pyproject.toml scripts/setup_venv.sh
	@scripts/setup_venv.sh dev

$(READY_DEMO): pyproject.toml scripts/setup_venv.sh
	@scripts/setup_venv.sh demo
