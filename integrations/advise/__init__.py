"""Measure data and embeddings, and say which objective to try, with the evidence."""
