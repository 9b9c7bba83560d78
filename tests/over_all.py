"""Suites that the command line names, in short, over the ranks of MPI (see test_engines.py)."""

import sys
from importlib import import_module

from tests.mpi_support import on_ranks


def main(engine):
    suites = [import_module(f"tests.over_{name}") for name in sys.argv[1:]]
    return "\n".join(suite.main(engine, brief=True) for suite in suites)


if __name__ == "__main__":
    on_ranks(main)
