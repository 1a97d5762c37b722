"""Publish trained encoders on the Hugging Face hub: ``counterpoint push``."""
