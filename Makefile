# Everything a newcomer types. Each target makes the virtual environment it needs by itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
SOURCES := setup.py pyproject.toml $(wildcard vpem/_core/*.pyx vpem/_core/*.pxd vpem/_core/simd/*)

.PHONY: help demo test golden processors crossings typers engines sanitize lint bench site docs pictures wheel clean

help:
	@echo "make demo   build in $(VENV) and show what it does on real data"
	@echo "make test   build and run every test"
	@echo "make golden keep what commands print now, which tests/test_golden.py holds them to"
	@echo "make processors  the numeric tests as other processors run them (half a minute)"
	@echo "make crossings  options that may not change an answer, crossed (a minute)"
	@echo "make typers  the command line with the oldest typer allowed, and with the newest"
	@echo "make engines  the tests of frameworks' engines, with all that these need (some minutes)"
	@echo "make sanitize  the kernels' tests, stopping at any wrong access (gcc; ten minutes)"
	@echo "make lint   ruff, mypy, cython-lint"
	@echo "make bench  time kernels, peers, scaling (see benchmarks/README.md)"
	@echo "make site   the pages of docs/ as a site, in build/site; any warning is an error"
	@echo "make docs   write the references from the code, then the site"
	@echo "make pictures  those of README and site, by the commands that the pages show"
	@echo "make wheel  the source distribution and a wheel of this Python, in dist/"
	@echo "make clean  remove $(VENV) and everything built"

# What builds the kernels and what they run with, as pyproject.toml has it, a line each.
REQUIRED := import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	print(*p["build-system"]["requires"], *p["project"]["dependencies"], sep="\n")

$(VENV)/made:
	@echo "Making a virtual environment in $(VENV) (ten seconds) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Byte code of the few modules that are imported is written then, not of all now.
$(VENV)/needed: $(VENV)/made pyproject.toml
	@echo "Installing NumPy, SciPy, scikit-learn and what else vpem runs on (180 MB to fetch, then half a minute) ..."
	@$(BIN)/python -c '$(REQUIRED)' >$(VENV)/needed.txt
	@$(PIP) --no-compile --requirement $(VENV)/needed.txt
	@touch $@

$(VENV)/built: $(VENV)/needed $(SOURCES)
	@echo "Building vpem and its kernels (half a minute on two cores; seconds when one has changed) ..."
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

# Further packages of an extra; kernels that are built stay as they are.
$(VENV)/with-%: $(VENV)/built
	@echo "Installing the packages of the extra '$*' (a minute or two, the first time) ..."
	@$(PIP) --no-build-isolation --editable '.[$*]'
	@touch $@

demo: $(VENV)/built
	$(BIN)/vpem demo

# Threads that wait give way: the tests run in a process for each processor, and one more. Byte code
# is kept, for hundreds of commands in processes of their own.
test: $(VENV)/with-test
	OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist worksteal

# What commands print and write, in tests/golden; what has not changed by more than rounding stays.
# Files there that later versions must read stay, too, unless FILES=1 is said.
golden: $(VENV)/with-test
	OMP_WAIT_POLICY=passive $(BIN)/python -m tests.golden $(if $(FILES),--files)

# Numbers that other processors find: what OpenBLAS and kernels take there, as far as this one can.
processors: $(VENV)/with-test
	set -e; for kind in Prescott::pni Nehalem:base:sse4_2 Haswell:avx2:avx2 Zen:avx2:avx2 \
	    SkylakeX::avx512f; do \
	  blas=$${kind%%:*}; needs=$${kind##*:}; kernels=$${kind#*:}; \
	  grep -qsw $$needs /proc/cpuinfo || { echo "$$blas: this processor has no $$needs, left out"; continue; }; \
	  OPENBLAS_CORETYPE=$$blas VPEM_INSTRUCTIONS=$${kernels%:*} $(BIN)/python -m pytest -q \
	    tests/test_kernels.py tests/test_mixture.py tests/test_units.py tests/test_estimators.py; \
	done

# The same runs everywhere: options that may not change an answer, alone and in pairs.
crossings: $(VENV)/with-test
	OMP_WAIT_POLICY=passive $(BIN)/python -m benchmarks.crossings --runs 30 --seed 0

# Typer and what it needs, in folders before all others; the oldest is that of pyproject.toml.
typers: $(VENV)/with-test
	set -e; oldest=$$(sed -n 's/.*"typer>=\([0-9.]*\)".*/\1/p' pyproject.toml); \
	for wanted in "typer==$$oldest" typer; do \
	  $(PIP) --upgrade --target "build/$$wanted" "$$wanted"; \
	  PYTHONPATH="build/$$wanted:." $(BIN)/python -W ignore -m pytest -q -n0 -o filterwarnings= \
	    tests/test_cli_help.py tests/test_cli_options.py \
	    tests/test_rules.py; \
	done

# Frameworks that place workers, and a server of S3: large, so that other tests leave out what is not there.
engines: $(VENV)/with-test $(VENV)/with-engines
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n0 tests/test_clusters.py tests/test_nvflare.py tests/test_lakes.py

$(VENV)/with-engines: $(VENV)/with-dask $(VENV)/with-ray $(VENV)/with-nvflare $(VENV)/with-lake-test
	@touch $@

# Kernels of their own, with what watches every access loaded before all else. Python itself leaks.
SANITIZED := build/sanitize
KERNEL_TESTS := kernels passes codecs saem_sampling hubs kmeans identities
WATCHED = LD_PRELOAD="$(foreach name,asan ubsan stdc++,$(shell gcc -print-file-name=lib$(name).so))" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=. \
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

sanitize: $(VENV)/with-test
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -r setup.py pyproject.toml README.md LICENSE cli data tests vpem $(SANITIZED)
	rm -f $(SANITIZED)/vpem/_core/*.c $(SANITIZED)/vpem/_core/*.so
	cd $(SANITIZED) && VPEM_SANITIZE=1 $(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd $(SANITIZED) && $(WATCHED) $(abspath $(BIN))/python -m pytest -q --capture=sys \
		-p no:cacheprovider -p no:faulthandler $(KERNEL_TESTS:%=tests/test_%.py)

lint: $(VENV)/with-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" cython-lint vpem/_core

bench: $(VENV)/with-bench
	$(BIN)/python -m benchmarks

site: $(VENV)/with-test
	$(BIN)/python -m sphinx -q -W --keep-going docs build/site
	@! grep -rEl --include='*.html' '<(script|link|img)[^>]+(src|href)="https?:' build/site \
	  || { echo "these pages would ask other sites for what they show"; exit 1; }
	@echo "build/site/index.html"

# Pages that the code makes are checked in; a test holds them to it.
docs: $(VENV)/with-test
	$(BIN)/python docs/make_reference.py
	$(MAKE) site

pictures: $(VENV)/with-test
	$(BIN)/python -m docs.make_pictures

# Without tools that make it portable: wheels of releases are cibuildwheel's (.github/workflows/wheels.yml).
wheel: $(VENV)/made
	@$(PIP) build
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist *.egg-info vpem/_core/*.c vpem/_core/*.so
