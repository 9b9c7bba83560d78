"""Compiled kernels, one file an idea; `vpem._core.reference` holds the NumPy twin of each."""
