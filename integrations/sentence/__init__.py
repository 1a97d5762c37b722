"""Sentences: training on sentence-transformers, and the field's two evaluations."""
