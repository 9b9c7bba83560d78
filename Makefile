# Everything a newcomer types. Each target makes the virtual environment it needs by itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml $(wildcard vpem/_core/*.pyx vpem/_core/*.pxd vpem/_core/simd/*)

.PHONY: help demo test sanitize lint bench docs clean

help:
	@echo "make demo   build in $(VENV) and fit a real dataset"
	@echo "make test   build and run every test"
	@echo "make sanitize  the kernels' tests, stopping at any wrong access (gcc; ten minutes)"
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

# Kernels of their own, with what watches every access loaded before all else. Python itself leaks.
SANITIZED := build/sanitize
KERNEL_TESTS := kernels kernels_edge sweep assign codecs messages missing_kernels langevin_kernels \
	proposal_kernels hubs distances kmeans properties
WATCHED = LD_PRELOAD="$(foreach name,asan ubsan stdc++,$(shell gcc -print-file-name=lib$(name).so))" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=. \
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

sanitize: $(VENV)/built
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -r setup.py pyproject.toml README.md LICENSE cli data tests vpem $(SANITIZED)
	rm -f $(SANITIZED)/vpem/_core/*.c $(SANITIZED)/vpem/_core/*.so
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'setuptools>=77' 'cython>=3.1'
	cd $(SANITIZED) && VPEM_SANITIZE=1 $(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd $(SANITIZED) && $(WATCHED) $(abspath $(BIN))/python -m pytest -q --capture=sys \
		-p no:cacheprovider -p no:faulthandler $(KERNEL_TESTS:%=tests/test_%.py)

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
