"""transformers: a callback that logs what an objective sees in its batches."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback

from counterpoint.diagnose.reports import log_reports


class ReportCallback(TrainerCallback):  # type: ignore[misc]
    """Log the reports of an objective as the trainer logs, to all that ``report_to`` names.

    Args:
        trainer: a ``Trainer``, or a ``SentenceTransformerTrainer``.
        loss: the objective, or a module that contains it, such as the trainer's ``loss``.

    >>> trainer.add_callback(ReportCallback(trainer, trainer.loss))  # doctest: +SKIP
    """

    def __init__(self, trainer: Trainer, loss: nn.Module, every: int = 50) -> None:
        self.trainer, self.loss, self.every = trainer, loss, every

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._reports = log_reports(self.loss, self.trainer.log, self.every)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._reports.close()
