"""Plugins: one host code base each."""
