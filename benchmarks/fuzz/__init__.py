"""Damaged files of every kind, given to the commands that read them."""
