"""The algorithms by name: each takes data, a network and options, and returns a result."""
