"""Readers of data: a module a format, and what their columns become."""
