"""What a user typed wrong, as one line, and the exit status that goes with it."""

from __future__ import annotations

EXIT_CONFIG_ERROR = 2


class ConfigError(ValueError):
    """Wrong input: one line with the key, what was found and what is allowed."""
