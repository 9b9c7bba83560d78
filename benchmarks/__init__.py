"""Benchmarks of vpem: ``python -m benchmarks``; see README.md in this folder."""
