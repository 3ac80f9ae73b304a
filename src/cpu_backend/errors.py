"""The one error that users cause."""


class ConfigError(RuntimeError):
    """A setting that cannot work here: one sentence with the cause and the way out.

    Not a ValueError: the host builds its configuration inside pydantic, which would wrap it.
    """
