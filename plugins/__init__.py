"""Plugins: one host code base each, imported on first use."""

from counterpoint.names import lazy

__getattr__ = lazy(__name__)
