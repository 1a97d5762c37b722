"""Check that the packages of the extra are installed, without importing them; the error names the extra."""

from importlib.util import find_spec

from counterpoint.install import install

for package in ("numpy", "datasets", "sentence_transformers"):
    if find_spec(package) is None:
        raise ImportError(f"sentences need {package}: {install('sentence')}")
