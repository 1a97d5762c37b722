"""Check that the packages of the extra are installed, without importing them; the error names the extra."""

from ..domain import require

require("sentences need", "sentence", "numpy", "datasets", "sentence_transformers")
