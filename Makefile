# Every target works from a bare checkout: the first one makes .venv and installs into it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.run
DEV    := $(VENV)/.dev
BROWSER := $(VENV)/.browser
DOCS   := $(VENV)/.docs
OTHER  := $(VENV)/speculators
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Two test processes, one thread each: more only fight over the same two cores.
JOBS   ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS)
# With the variable set the test that needs the package runs, and fails where there is none.
WITH_SPECULATORS := FORETOKEN_SPECULATORS_PYTHON=$(CURDIR)/$(OTHER)/bin/python

.DEFAULT_GOAL := help
.PHONY: help demo docs test test-all speculators asan hostile soak lint format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN)  ## plain and speculative decoding side by side on the bundled models
	$(BIN)/foretoken demo

docs: $(DOCS)  ## the documentation as a site in build/site; a link that leads nowhere fails
	$(BIN)/mkdocs build --strict --config-file site/mkdocs.yaml

test: lint $(BROWSER) $(DOCS)  ## lint, types, import rules and tests but slow ones; installs a browser
	$(PYTEST) -m "not slow"

test-all: lint $(BROWSER) $(DOCS) $(OTHER)/.installed asan hostile soak  ## with slow tests, hostile inputs and a soak; records its result
	$(WITH_SPECULATORS) $(PYTEST) --record-run tests/last-full-run.json

speculators: $(DEV) $(OTHER)/.installed  ## what we write for speculators, read by that package
	$(WITH_SPECULATORS) $(PYTEST) tests/trainable/formats/test_write.py -k speculators_says

# 200 checkpoints, each damaged in one way, and 400 matrices; needs gcc's libasan.
asan: $(DEV)  ## damaged checkpoints and odd matrices through loops built under AddressSanitizer
	$(BIN)/python benchmarks/fuzz_checkpoints.py --asan --count 200
	$(BIN)/python benchmarks/fuzz_blocks.py --check --count 100 --out build
	$(BIN)/python benchmarks/hostile.py --asan --check --out build

# In processes of their own, so that one that dies ends nothing else.
hostile: $(DEV)  ## 1,686 hostile inputs: none raw, none that harms another
	$(BIN)/python benchmarks/hostile.py --check --out build

# Two runs of the whole one, which takes an hour: python benchmarks/soak.py --check
soak: $(DEV)  ## thousands of requests, many of which go wrong, leave no memory behind
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/soak.py --check --methods mixed online --out build

lint: $(DEV)  ## ruff, mypy and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)  ## sort imports, fix what ruff can fix, format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) build dist zoo/dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests zoo -name __pycache__ -type d -prune -exec rm -rf {} +

# What users install: the command line, the benchmark and the bundled models, built by hatchling.
$(RUN): pyproject.toml zoo/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt hatchling
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[bench,cli,gguf]' -e ./zoo
	@touch $@

# And what the tests and checks need.
$(DEV): $(RUN)
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# What makes the site, which the tests build too.
$(DOCS): $(RUN)
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[docs]'
	@touch $@

# The package in an environment of its own: it has other versions of what we use.
$(OTHER)/.installed: $(DEV)
	test -x $(OTHER)/bin/python || $(BIN)/python -m venv $(OTHER)
	$(OTHER)/bin/python -m pip --disable-pip-version-check --quiet install speculators==0.9.0
	@touch $@

# The report is looked at in a real browser. Where none can be installed, that test fails and says so.
$(BROWSER): $(DEV)
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null || true
	@touch $@
