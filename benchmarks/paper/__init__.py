"""The experiments of the papers, each one command: ``python -m benchmarks.paper``."""
