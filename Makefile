# Everything a newcomer types. Each target makes the virtual environment it needs by itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml $(wildcard vpem/_core/*.pyx vpem/_core/*.pxd vpem/_core/simd/*)

.PHONY: help demo test lint bench docs clean

help:
	@echo "make demo   build in $(VENV) and fit a real dataset"
	@echo "make test   build and run every test"
	@echo "make lint   ruff, mypy, cython-lint"
	@echo "make bench  time kernels, peers, scaling (see benchmarks/README.md)"
	@echo "make docs   write the references from the code, and the site to build/site"
	@echo "make clean  remove $(VENV) and everything built"

$(VENV)/made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@touch $@

$(VENV)/built: $(VENV)/made $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

$(VENV)/linters: $(VENV)/made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'ruff>=0.6' 'mypy>=1.11' 'cython-lint>=0.16'
	@touch $@

$(VENV)/benches: $(VENV)/built pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

demo: $(VENV)/built
	$(BIN)/vpem fit data/breast_cancer.h5 --topology cycle --hops 1 --seed 0 --output demo-model.h5 --force
	$(BIN)/vpem evaluate demo-model.h5 data/breast_cancer.h5

# Threads that wait give way: the tests run in a process for each processor.
test: $(VENV)/built
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: $(VENV)/built $(VENV)/linters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" cython-lint vpem/_core

bench: $(VENV)/benches
	$(BIN)/python -m benchmarks

docs: $(VENV)/built
	$(BIN)/python docs/make_reference.py
	$(BIN)/python -m sphinx -q -W --keep-going docs build/site
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) build dist *.egg-info vpem/_core/*.c vpem/_core/*.so
