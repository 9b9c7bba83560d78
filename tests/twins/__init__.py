"""NumPy twins of the compiled kernels: the same names and arguments, and the equations."""
