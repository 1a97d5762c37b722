"""Gymnasium and NumPy, imported first so that the error names the extra if one is missing."""

MISSING = 'control needs dm_control and Gymnasium: pip install "counterpoint[control]"'
try:
    import gymnasium  # noqa: F401
    import numpy  # noqa: F401
except ImportError as error:
    raise ImportError(MISSING) from error
