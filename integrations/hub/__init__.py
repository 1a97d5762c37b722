"""Publish trained encoders: ``counterpoint push`` to the Hugging Face hub, ``counterpoint export`` to files."""
