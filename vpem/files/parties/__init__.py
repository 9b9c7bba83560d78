"""Parties' own files, aligned by their rows."""
