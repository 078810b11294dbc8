# The daily commands; `make` alone lists them.

PYTHON := $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
RUN ?= checkpoints/release
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup test test-all lint format train report documents ci

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## .venv with the project and all it tests with
	python3 -m venv .venv
	.venv/bin/pip install torch==2.13.0
	.venv/bin/pip install --editable '.[test]'

test: ## the tests, without the long ones
	$(PYTHON) -m pytest

test-all: ## all tests, the long ones too
	$(PYTHON) -m pytest -m ''

lint: ## what .ci/run asks before the tests: style, types, import rules
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

format: ## put the code into its layout
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

train: ## a policy in a few minutes, with a table and pictures at the end
	$(PYTHON) -m agents.train

report: ## report.html of RUN=checkpoints/...
	$(PYTHON) -m agents.report $(RUN) --out report.html

documents: ## every table and picture of README.md and docs/, with WORKERS=2 processes
	$(PYTHON) -m agents.reproduce --workers $(WORKERS)

ci: ## what every change must pass, in a fresh environment
	.ci/run
