"""Objectives: one family a file."""
