# What needs packages makes or repairs .venv first (scripts/environment.py); nothing is installed outside of it.

PYTHON ?= python3
PORT ?= 8888
BOOK ?= en
BIN := .venv/bin

# Compiled modules are worth more than half of a notebook's start.
unexport PYTHONDONTWRITEBYTECODE

# Run a script that needs nothing but Python: the environment's own, unless PYTHON= asks for another or it does not run.
version = 'import sys; sys.exit(sys.version_info < (3, 11))'
define bare
	@python='$(PYTHON)'; \
	if [ '$(origin PYTHON)' = file ] && $(BIN)/python -c $(version) 2>/dev/null; then python=$(BIN)/python; \
	elif ! "$$python" -c pass >/dev/null 2>&1; then \
		echo "agentlab: no Python runs as '$$python': install 3.11 or newer, or name one: make $@ PYTHON=/path/to/python3" >&2; exit 1; \
	elif ! "$$python" -c $(version); then \
		echo "agentlab: '$$python' is $$("$$python" -V 2>&1), too old: name a 3.11 or newer: make $@ PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	"$$python" $(1)
endef
ready = $(call bare,scripts/environment.py $(1))
nbval := --nbval --nbval-current-env --nbval-cell-timeout=120

.PHONY: help lab test check bench soak book lock clean
.NOTPARALLEL:

help: ## list the targets (what plain `make` does)
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-6s  %s\n", $$1, $$2}' Makefile

lab: ## open the chapters in JupyterLab; BOOK=zh, PORT=8889, NO_BROWSER=1, PYTHON=python3.12
	$(call ready,lab)
	@$(BIN)/python scripts/lab.py '$(PORT)' '$(BOOK)' $(if $(NO_BROWSER),--no-browser)

test: ## every test, and every English chapter against its saved outputs
	$(call ready,test)
	@$(BIN)/python -m pytest -q -n3 --dist=loadfile $(nbval) tests $(wildcard notebooks/[0-9]*.ipynb notebooks/*/02*.ipynb)

check: ## lint, format and types
	$(call ready,test)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: ## the benchmarks' tables
	$(call ready,test)
	@for script in $(or $(wildcard tests/bench/bench_*.py),$(error no benchmarks in tests/bench)); do \
		echo "# $$script"; $(BIN)/python "$$script" || exit 1; done

soak: ## the long tests that `make test` leaves out, and the chapters in other languages
	$(call ready,test)
	@$(BIN)/python -m pytest -q -m soak --hypothesis-profile=soak
	@$(BIN)/python -m pytest -q -n3 --dist=loadfile $(nbval) $(wildcard notebooks/*/[0-9]*.ipynb)

book: ## build notebooks/*.ipynb from notebooks/text, outputs and all; NAMES="00 03"
	$(call ready,lab)
	@$(BIN)/python scripts/book.py build $(NAMES)

lock: ## choose the newest versions for requirements.lock
	$(call bare,scripts/lock.py)

clean: ## remove .venv and everything else that the targets made
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find . -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -print0 | xargs -0 rm -rf

.DEFAULT:
	$(error no target '$@': plain `make` lists them)
