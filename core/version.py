"""The version, in a module of its own so that building needs no torch."""

__version__ = "0.1.0"
