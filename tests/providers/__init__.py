"""Providers of linear layers and experts.  Nothing of test_layers.py needs the host."""
