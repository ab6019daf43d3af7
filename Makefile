# `make demo` and `make test` are all a newcomer needs: each makes .venv and installs what it uses.
# Another Python: make test PYTHON=python3.12. Another compiler: CXX=clang++ make test.

PYTHON ?= python3
WORKERS ?= logical

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
KERNELS := $(shell find host/kernels -type f)
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# torch and the test runner would each take every core: the runner gets them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint types unit wheel sim slow bench install clean

help: ## Show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-13s %s\n", $$1, $$2 }'

demo: $(INSTALLED) ## Train a small GPT on real text through the relay, beside plain PyTorch
	@$(BIN)/relay-eps train --compare

test: lint types unit wheel ## Run every check that CI runs

# $(call timed,heading,command): one heading, one command, and how long it took.
timed = @printf '\n== %s\n' '$(1)'; start=$$(date +%s); { $(2); } || exit 1; \
	printf '== %s: passed in %d s\n' '$(1)' $$(($$(date +%s) - start))

lint: $(INSTALLED) ## Check style and formatting
	$(call timed,ruff,$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --diff .)

types: $(INSTALLED) ## Check types
	$(call timed,mypy,$(BIN)/mypy)

unit: $(INSTALLED) ## Run the tests but for the slow ones
	$(call timed,pytest,$(PYTEST))

sim: $(INSTALLED) ## Run every cocotb bench of the gateware; WAVES=1 leaves waveforms
	@$(BIN)/python -m tests.hw.cocotb

slow: $(INSTALLED) ## Run the tests that take minutes
	$(call timed,pytest -m slow,$(PYTEST) -m slow --timeout 3600)

# The wheel is built from the sdist, as a packager would, and then used where there is nothing but numpy.
wheel: $(INSTALLED) ## Build the wheel, with and without kernels, and use it in a clean environment
	$(call timed,wheel,rm -rf build/wheel && \
	$(BIN)/python -m build --no-isolation --outdir build/wheel/full . >build/wheel.log 2>&1 || { cat build/wheel.log; false; } && \
	RELAY_EPS_PURE=1 $(BIN)/python -m build --no-isolation --wheel --outdir build/wheel/pure . >build/wheel.log 2>&1 \
		|| { cat build/wheel.log; false; } && \
	$(PYTHON) -m venv --clear build/wheel/clean && \
	clean=build/wheel/clean/bin/python && \
	$$clean -m pip --disable-pip-version-check -qq install -c constraints.txt numpy && \
	for kind in full pure; do \
		$$clean -m pip --disable-pip-version-check -qq install --no-deps --force-reinstall build/wheel/$$kind/*.whl && \
		$$clean -I tests/check_installed.py $$kind || exit 1; \
	done)

bench: $(INSTALLED) ## Measure what docs/ claims: speed and memory against plain PyTorch
	@for script in $$(grep -l __main__ benchmarks/*.py); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

install: $(INSTALLED) ## Make .venv and install the package in it, editable

clean: ## Remove what was built; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache

# Python files are used where they lie; a change of a C++ file or of a dependency installs again.
$(INSTALLED): pyproject.toml constraints.txt $(KERNELS)
	@$(preflight)
	@echo "== installing into $(VENV) (the first time this takes a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# What pip would only find out after minutes, said at once and in one line.
define preflight
missing=; \
if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
	missing="Python 3.10 or later ('$(PYTHON)' is $$($(PYTHON) -V 2>/dev/null || echo not there); name another with PYTHON=...)"; \
else \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="Python's venv module (Debian: apt install python3-venv)"; \
	$(PYTHON) -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' \
		|| missing="$${missing:+$$missing; }Python's C headers (Debian: apt install python3-dev)"; \
fi; \
cxx="$${CXX:-$$(command -v c++ || command -v g++ || command -v clang++)}"; \
echo '#include <vector>' | $${cxx:-c++} -std=c++17 -fsyntax-only -x c++ - 2>/dev/null \
	|| missing="$${missing:+$$missing; }a C++17 compiler (Debian: apt install g++; or name one with CXX=...)"; \
test -z "$$missing" || { echo "relay-eps cannot be installed; missing: $$missing" >&2; exit 1; }
endef
