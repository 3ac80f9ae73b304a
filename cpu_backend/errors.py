"""The error a user can act on; raised wherever a setting and the machine do not fit together."""


class ConfigError(ValueError):
    """One sentence that names the setting, the cause and the way out."""
