"""counterpoint: contrastive objectives for the training code you already have.

Examples in docstrings need the imports of this one:

>>> import torch, counterpoint as cp
>>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
>>> loss_fn = cp.objective("adnce:t=0.5,mu=0.7")
>>> loss_fn == cp.ADNCE(temperature=0.5, mu=0.7)
True
>>> loss_fn(z1, z2).shape
torch.Size([])
"""

import typing as _typing
import warnings as _warnings
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec

from . import names as _names
from .version import __version__ as __version__

_warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch's, which then works without it

if _typing.TYPE_CHECKING:
    from .api import *  # noqa: F403
else:  # type checkers would take __getattr__ as a reason to accept any name

    def __getattr__(name):
        """Import a module of the package, or the public names, on first use: commands start without torch."""
        is_module = name.isidentifier() and _find_spec(f"{__name__}.{name}")
        if is_module or (name.startswith("_") and name != "__all__"):
            return _names.lazy(__name__)(name)
        api = _import_module(f"{__name__}.api")
        if name == "__all__" or name in api.__all__:
            globals().update({public: getattr(api, public) for public in ("__all__", *api.__all__)})
            return globals()[name]
        here = _names.elsewhere(name)
        if here or name in _names.COMMANDS:
            hint = f"here it is cp.{here[1]}" if here else f"it is a command, `counterpoint {name} --help`"
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {hint}.", name=name, obj=None)
        return _names.lazy(__name__, known=api.__all__)(name)


def __dir__() -> list[str]:
    return sorted(_import_module(f"{__name__}.api").__all__)
