# Everything a newcomer types. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# With linters and test tools.
DEV := $(VENV)/.installed-dev
WHEELHOUSE ?= .wheelhouse

# make test-matrix MAX_ITERS=500 TRACKER=wandb,trackio GPU_MONITOR=n
MAX_ITERS ?=
TRACKER ?=
GPU_MONITOR ?= y
# small, or full: every kind of model
MATRIX ?= small
ARGS ?=
PROJECT ?=
FOLDER ?=
STUDY ?=

OVERRIDES := $(if $(MAX_ITERS),max_steps=$(MAX_ITERS)) \
  $(if $(TRACKER),$(if $(filter none,$(TRACKER)),tracking=none,'tracking.trackers=[$(TRACKER)]')) \
  $(if $(filter n no false 0,$(GPU_MONITOR)),monitor.devices=false)

ifneq ($(filter-out y yes true 1 n no false 0,$(GPU_MONITOR)),)
$(error GPU_MONITOR: found '$(GPU_MONITOR)'; allowed: y or n)
endif
ifneq ($(filter-out y n,$(STUDY)),)
$(error STUDY: found '$(STUDY)'; allowed: y or n)
endif
one_word = $(if $(word 2,$($1)),$(error $1: found '$($1)'; allowed: $2))
$(call one_word,MAX_ITERS,one number)
$(call one_word,TRACKER,one word: names with commas between them)
no_folder = echo "FOLDER: found none; allowed: make $@ FOLDER=multirun/<sweep>" >&2; exit 2
needs_folder = $(if $(FOLDER),,@$(no_folder))

.DEFAULT_GOAL := help
.PHONY: help setup train test test-fast test-oldest test-lightning test-huggingface cluster-test slurm-test gpu-test check lint types test-matrix test_matrix trackio-view trackio-web \
  wandb-sync report estimate soak overhead self-test wheelhouse install-offline dist clean

help: ## List the targets, and the saved default configuration
	@awk -F ':.*## ' '/^[a-z_%-]+:.*## / {sub("%", "NAME", $$1); printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@test ! -f .defconfig || echo "default of the next runs (.defconfig): $$(tr '\n' ' ' < .defconfig)"

# What README types next is found in the environment only.
say_next = test "$$VIRTUAL_ENV" -ef $(VENV) || \
  printf '%s\n' "the environment that the commands of README need; paste:" ". $(BIN)/activate"

setup: $(STAMP) ## Create .venv and install (done by the others when needed)
	@$(say_next)

# The pip that venv brings needs twice the time to choose and unpack what follows; it would do.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "found $$($(PYTHON) --version); needed: Python 3.11 or newer: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) -m venv failed: on Debian, apt-get install python3-venv"; exit 2; }
	-@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade pip

# Not --quiet: to be silent for a minute looks like being stuck.
INSTALL := $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV): about 1.2 GB, with CUDA more; a minute or two"
	$(INSTALL) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $(STAMP) $@

# Integration tests wait for what they started for a quarter of their time: three keep two cores busy.
test: $(DEV) ## Run every test
	$(BIN)/python -m pytest tests/unit -n 2
	$(BIN)/python -m pytest tests/integration -n 3 --dist loadfile --durations=15 -m 'not cluster'

test-fast: $(DEV) ## Run the unit tests
	$(BIN)/python -m pytest tests/unit -n 2

OLDEST := .venv-oldest
OLDEST_TESTS := tests/unit/config tests/unit/records tests/unit/train
test-oldest: ## Test with the oldest of every library that is allowed (3 GB, in .venv-oldest)
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
	  -e . datasets hypothesis pytest pytest-timeout pytest-xdist
	$(OLDEST)/bin/python -m pytest $(OLDEST_TESTS) -n 2

# With the present torch: seconds to install, none of its CUDA libraries.
LIGHTNING := .venv-lightning
LIGHTNING_TESTS := $(patsubst %,tests/unit/train/test_%.py,checkpoint_trust data execution fit_records monitor \
  recorded_steps strategies)
OLDEST_PINS = $(shell grep -E '^(pytorch-lightning|torchmetrics|hydra-core|omegaconf)==' constraints-oldest.txt)
test-lightning: $(DEV) ## Test with the oldest Lightning, torchmetrics and Hydra, beside the present torch
	@rm -rf $(LIGHTNING)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(LIGHTNING) $(OLDEST_PINS)
	PYTHONPATH=$(CURDIR)/$(LIGHTNING) $(BIN)/python -m pytest $(LIGHTNING_TESTS)

# Apart from the other tests: where transformers is installed, torchmetrics loads it at every start.
HUGGING_FACE := .venv-huggingface
test-huggingface: $(DEV) ## Test loops of Accelerate, and the Trainer of transformers (140 MB)
	@rm -rf $(HUGGING_FACE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(HUGGING_FACE) \
	  -c constraints.txt accelerate regex safetensors tokenizers transformers typer
	PYTHONPATH=$(CURDIR)/$(HUGGING_FACE) $(BIN)/python -m pytest tests/integration/test_monitored_loops.py -k hugging_face

cluster-test: $(DEV) ## Test against a Ray cluster that is made on this host
	$(INSTALL) -e '.[dev,ray]'
	$(BIN)/python -m pytest tests/integration -m cluster

gpu-test: $(DEV) ## Test on this host's NVIDIA GPUs: minutes; with fewer than two, what needs two skips
	$(BIN)/python -m pytest tests/gpu -m gpu --durations=0 $(ARGS)

slurm-test: $(DEV) ## Install (Debian, root) and start a SLURM on this host, and test against it
	$(BIN)/python tools/slurm_test.py $(ARGS)

check: lint types ## Lint, formatting and types

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(DEV)
	$(BIN)/mypy

MATRIX_small := experiment=matrix_medium,matrix_gpt2_tiny strategy=single,ddp
MATRIX_full := experiment=full_matrix
unknown_matrix = $(error MATRIX: found '$(MATRIX)'; allowed: small, full)
$(if $(MATRIX_$(MATRIX)),,$(if $(filter test-matrix test_matrix,$(MAKECMDGOALS)),$(unknown_matrix)))
# Steps that warm up are not timed: a matrix needs more than the longest warm-up of its experiments.
comma := ,
MATRIX_FILES = $(patsubst %,conf/experiment/%.yaml,$(subst $(comma), ,\
  $(patsubst experiment=%,%,$(filter experiment=%,$(MATRIX_$(MATRIX))))))
LEAST_ITERS = $(shell sed -n 's/^warmup_steps: *\([0-9]*\).*/\1/p' $(MATRIX_FILES) /dev/null | sort -n | awk 'END {print $$1 + 1}')
too_few = test "$(MAX_ITERS)" -ge $(LEAST_ITERS) 2>/dev/null || { echo "MAX_ITERS: found '$(MAX_ITERS)'; \
  allowed: $(LEAST_ITERS) or more (max_steps; the first $$(($(LEAST_ITERS) - 1)) warm up), or fewer with ARGS=warmup_steps=N" >&2; exit 2; }
test-matrix: $(STAMP) ## Train a matrix and print the verdict (MATRIX=small|full MAX_ITERS=<more than its warm-up> TRACKER= GPU_MONITOR=y|n)
	$(if $(MAX_ITERS),$(if $(filter warmup_steps=%,$(ARGS)),,@$(too_few)))
	$(BIN)/python train.py -m $(MATRIX_$(MATRIX)) $(OVERRIDES) $(if $(MAX_ITERS),repeats=3) $(ARGS); status=$$?; $(say_next); exit $$status

test_matrix: test-matrix

train: $(STAMP) ## Train what .defconfig or ARGS= say
	$(BIN)/python train.py $(OVERRIDES) $(ARGS); status=$$?; $(say_next); exit $$status

defconfig-%: $(STAMP) ## Save an experiment as the default of the next runs (TRACKER=wandb,trackio)
	$(BIN)/scalewise defconfig $* $(if $(TRACKER),--trackers $(TRACKER))

report: $(STAMP) ## Rebuild the report of a sweep (FOLDER=multirun/... STUDY=y for the study's files)
	$(needs_folder)
	$(BIN)/scalewise report $(FOLDER) $(if $(filter y,$(STUDY)),--study)

estimate: $(STAMP) ## Say where the newest sweep stands and when it will have ended (FOLDER=)
	@$(BIN)/scalewise status $(FOLDER)

soak: $(STAMP) ## Kill a sweep at random moments and resume it each time (KILLS=200)
	$(BIN)/python benchmarks/soak.py --kills $(or $(KILLS),200)

trackio-view: $(STAMP) ## Start Trackio's dashboard and print its URL (PROJECT=)
	$(BIN)/scalewise trackio-view $(if $(PROJECT),--project $(PROJECT))

trackio-web: $(STAMP) ## Print the dashboard's URL without starting it (PROJECT=)
	$(BIN)/scalewise trackio-view $(if $(PROJECT),--project $(PROJECT)) --url-only

wandb-sync: $(STAMP) ## Upload WandB runs recorded offline (FOLDER=multirun/...)
	$(needs_folder)
	$(BIN)/wandb sync $(FOLDER)/wandb/offline-run-*

overhead: $(STAMP) ## Measure what measuring costs, by switches in one run (ARGS="--workload gpt2")
	$(BIN)/python benchmarks/overhead.py $(ARGS)

self-test: $(STAMP) ## Plant faults and see whether the analysis names them (ARGS=--quick)
	$(BIN)/python benchmarks/self_test.py $(ARGS)

wheelhouse: $(STAMP) ## Collect the wheels a GPU host without internet lacks (WHEELHOUSE=)
	$(BIN)/python tools/wheelhouse.py $(WHEELHOUSE)

install-offline: ## Install from the wheelhouse into the running Python, keeping its own torch
	$(PYTHON) -m pip install --no-index --find-links $(WHEELHOUSE) --no-deps $(WHEELHOUSE)/*.whl

dist: $(DEV) ## Build the wheel and the source archive into dist/
	$(BIN)/python -m hatchling build

clean: ## Remove what the tools left behind (never a sweep)
	rm -rf .mypy_cache .ruff_cache .pytest_cache dist build
