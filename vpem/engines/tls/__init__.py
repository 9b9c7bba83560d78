"""Processes of organisations that share no cluster: links over TLS, each end pinned."""
