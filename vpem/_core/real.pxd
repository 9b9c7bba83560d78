"""The two precisions of every kernel: one source for both."""
ctypedef fused real:
    float
    double
