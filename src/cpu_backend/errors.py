"""Errors for people: one sentence with the cause and the way out."""


class ConfigError(RuntimeError):
    """A model, setting or machine with which nothing can start.

    Not a ValueError: the host builds its configuration inside pydantic, which would wrap it.
    """


class EngineEndedError(RuntimeError):
    """The engine process has ended, and nobody had asked it to."""
