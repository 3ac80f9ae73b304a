"""Executor, worker and model runner: the host's classes, on this project's runtime."""
