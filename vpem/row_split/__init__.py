"""Distributed EM over rows that workers hold."""
