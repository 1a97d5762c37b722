"""Sentences: training on sentence-transformers, and the field's two evaluations."""

from counterpoint.names import lazy

__getattr__ = lazy(__name__)
