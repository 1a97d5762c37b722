"""Check that the packages of the extra are installed, also those that a run needs last; the error names the extra."""

from ..domain import require

require("control needs", "control", "gymnasium", "numpy", "safetensors")
