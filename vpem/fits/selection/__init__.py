"""How many components, how many hops: fits compared."""
