"""Quantized linear layers: schemes of checkpoints, and quantization at load."""
