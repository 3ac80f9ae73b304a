"""The innermost loops of the kernels, counted as they are compiled, for CPUs that are not there."""
