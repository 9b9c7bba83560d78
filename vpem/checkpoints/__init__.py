"""State of a run, kept so that it can go on: to the same result, bit by bit."""
