"""What the ops should compute, in plain PyTorch and written to be read.

Each function computes in the dtype it is given: fp64 inputs give the exact answer to judge by, and
fp32 inputs give what a careful PyTorch model would get.
"""
