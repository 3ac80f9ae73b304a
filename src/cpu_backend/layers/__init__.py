"""The host's layers, computed on this project's ops; host/ puts them in their places."""
