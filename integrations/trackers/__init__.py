"""Send the curves and results of runs to wandb, trackio, MLflow or TensorBoard, beside the store.

:func:`tracked` wraps a training function: each line that a run logs goes to every tracker too, through the tracker's
own asynchronous client, and so do its result and how it ended. A cell does not contain the names of trackers, so a run
is the same with and without them. A resumed run continues its curve: its identifier comes from the store, and lines
that the tracker lacks are sent again. The store stays complete; a tracker that fails is left out with a warning.
"""

from typing import TYPE_CHECKING

from counterpoint import names

if TYPE_CHECKING:
    from .sending import check, tracked

NAMES = ("wandb", "trackio", "mlflow", "tensorboard")  # of the trackers and of their packages

__all__ = ["NAMES", "check", "tracked"]

__getattr__ = names.lazy(__name__, {"sending": ("check", "tracked")})
