"""Import lightly, Lightning, torchvision and scikit-learn; if one is missing, the error names the extra to install."""

from counterpoint.install import install

try:
    import lightly.loss  # noqa: F401
    import lightning  # noqa: F401
    import sklearn  # noqa: F401
    import torchvision  # noqa: F401
except ImportError as error:
    message = f"images need lightly, Lightning, torchvision and scikit-learn: {install('image')}"
    raise ImportError(message) from error
