"""Attention: the backend class the host selects, its per-step metadata, and its forward."""
