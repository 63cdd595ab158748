# `make study` and `make test` work from a fresh clone on a bare machine with python3, pip and make.

# Not the environment's own, should it be active: it has no pip.
PYTHON ?= $(shell PATH=$$(echo "$$PATH" | sed "s|$(CURDIR)/.venv/bin:||g") command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
# Groups of tests start in the order of tests/conftest.py: those that take longest come first.
PYTEST := $(RUN) -m pytest --numprocesses=auto --dist=loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup study test test-all quick-tests all-tests lint format lock clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

study: setup ## set up, then search on the built-in features and report on their test classes
	$(RUN) tune/search.py
	$(RUN) tune/report.py

# Lint and types run beside the tests. Make waits for both, and fails if one of them does.
test: setup ## set up, then lint, type check and run the quick tests
	@$(MAKE) --no-print-directory --jobs=2 lint quick-tests

test-all: setup ## the same with the slow tests
	@$(MAKE) --no-print-directory --jobs=2 lint all-tests

quick-tests: setup
	$(PYTEST) -m "not slow"

all-tests: setup
	$(PYTEST) --durations=25

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m deptry cpaan tune
	$(RUN) -m deptry tests --exclude none --ignore DEP002,DEP004
	$(RUN) -m mypy

format: setup ## let ruff mend what it can
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

setup: $(VENV)/.installed

# Debian splits ensurepip from python3, so the environment is made without pip and filled by the
# system's pip from outside.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(RUN) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Triton is left out: every build of torch wants a version of its own.
lock: ## write the newest versions that fit into constraints.txt (torch stays where it is)
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv --without-pip $(VENV)-lock
	$(PYTHON) -m pip --python $(VENV)-lock/bin/python install --quiet torch==2.13.0 '.[dev]'
	echo '# Every version that "make" installs; written by "make lock".' > constraints.txt
	$(PYTHON) -m pip --python $(VENV)-lock/bin/python freeze --all --exclude cpaan --exclude triton | sed 's/+cpu//' >> constraints.txt
	rm -rf $(VENV)-lock

clean: ## remove the environment and what tools left behind
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
