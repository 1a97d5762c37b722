"""The version, and the warning of deprecated names, in a module of its own so that building needs no torch."""

__version__ = "0.1.0"


class Deprecated(FutureWarning):
    """A public name that will be removed: ``typing_extensions.deprecated(message, category=Deprecated)``."""
