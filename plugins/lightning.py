"""Lightning: a callback that logs what the objectives in a LightningModule see in their batches."""

from __future__ import annotations

from typing import Any

import lightning.pytorch

from counterpoint.diagnose.reports import log_reports


class ReportCallback(lightning.pytorch.Callback):
    """Log the reports of a module's objectives, to all of the trainer's loggers.

    >>> trainer = lightning.Trainer(callbacks=[ReportCallback(every=100)])  # doctest: +SKIP
    """

    def __init__(self, every: int = 50) -> None:
        self.every = every

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        def log(numbers: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

        self._reports = log_reports(pl_module, log, self.every)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._reports.close()
