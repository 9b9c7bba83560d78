"""Parties with files of their own, aligned by ids."""
