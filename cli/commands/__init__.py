"""Commands: each a record of settings, a function, and a rendering of one result."""
