"""Integrations: one domain each."""
