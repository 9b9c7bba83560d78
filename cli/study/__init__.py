"""Studies: who takes part, what members agree on, and how they meet."""
