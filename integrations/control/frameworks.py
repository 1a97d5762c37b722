"""Gymnasium and NumPy, imported first so that the error names the extra if one is missing."""

from counterpoint.install import install

MISSING = f"control needs dm_control and Gymnasium: {install('control')}"
try:
    import gymnasium  # noqa: F401
    import numpy  # noqa: F401
except ImportError as error:
    raise ImportError(MISSING) from error
