"""Graphs of agents: topologies, mixing weights, hubs."""
