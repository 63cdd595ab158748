# `make study` and `make test` run on a fresh clone with only python3, pip and make installed.

# Ignore an active .venv, because it has no pip.
PYTHON ?= $(shell PATH=$$(echo "$$PATH" | sed "s|$(CURDIR)/.venv/bin:||g") command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
# Start groups of tests in the order of tests/conftest.py: the slowest first.
PYTEST := $(RUN) -m pytest --numprocesses=auto --dist=loadgroup --no-loadscope-reorder

# Cached bytecode starts the many processes of the tests sooner.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup study test test-all quick-tests all-tests lint format lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

study: setup ## install, search on the built-in features, report on their test classes
	$(RUN) tune/search.py
	$(RUN) tune/report.py

# Lint and type checks run in parallel with the tests. Make waits for both, and fails if one fails.
test: setup ## install, lint, type check and run the quick tests
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

format: setup ## format the code and apply ruff's fixes
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

setup: $(VENV)/.installed

# Debian ships python3 without ensurepip, so create the environment without pip and install into it
# with the system's pip.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(RUN) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Leave out Triton, because each build of torch needs its own version.
lock: ## write the newest compatible versions to constraints.txt (torch keeps its version)
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv --without-pip $(VENV)-lock
	$(PYTHON) -m pip --python $(VENV)-lock/bin/python install --quiet torch==2.13.0 '.[dev]'
	echo '# Every version that "make" installs; written by "make lock".' > constraints.txt
	$(PYTHON) -m pip --python $(VENV)-lock/bin/python freeze --all --exclude cpaan --exclude triton | sed 's/+cpu//' >> constraints.txt
	rm -rf $(VENV)-lock

clean: ## delete the environment, build files and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
