"""Any objective in a LightningModule, on synthetic images, in seconds on a CPU: python train.py "hcl:t=0.2"."""

from __future__ import annotations

import sys
import tempfile

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import counterpoint as cp


class Contrastive(lightning.LightningModule):
    """Two noisy views of each image through one encoder."""

    def __init__(self, objective: str) -> None:
        super().__init__()
        self.save_hyperparameters()  # a spec is plain text, and is saved in the checkpoint
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        # a submodule: learned values, schedules and statistics are trained, moved and saved with the model
        self.objective = cp.objective(objective)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        views = [self.encoder(batch[0] + 0.3 * torch.randn_like(batch[0])) for _ in range(self.objective.views or 2)]
        loss = self.objective(*views)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class ReportCallback(lightning.Callback):
    """Report the module's objective in every tenth batch, to all loggers of the trainer."""

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        def log(numbers: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

        self.reports = cp.log_reports(module, log, every=10)

    def on_train_end(self, *_: object) -> None:
        self.reports.close()


def images(count: int = 512, patterns: int = 8) -> TensorDataset:
    """Return noisy images of ``patterns`` patterns, and the pattern of each."""
    pattern = torch.arange(count) % patterns
    return TensorDataset(0.3 * torch.randn(patterns, 8, 8)[pattern] + 0.3 * torch.randn(count, 8, 8), pattern)


@torch.no_grad()
def neighbours(model: Contrastive, data: TensorDataset) -> float:
    """Return the share of images whose nearest neighbour shows the same pattern."""
    x, pattern = data.tensors
    similarity = nn.functional.cosine_similarity(*(model.encoder(x)[i] for i in ((slice(None), None), (None,))), dim=-1)
    return float((pattern[similarity.fill_diagonal_(-2).argmax(1)] == pattern).float().mean())


def main(spec: str = "adnce:t=0.5,mu=0.7 + 0.1*dp") -> None:
    lightning.seed_everything(0, verbose=False)
    model, data = Contrastive(spec), images()
    before = neighbours(model, data)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=5,
            accelerator="cpu",
            logger=CSVLogger(folder),
            callbacks=[ReportCallback()],
            enable_progress_bar=False,
        )
        trainer.fit(model, DataLoader(data, batch_size=64, shuffle=True, drop_last=True))
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        loaded = Contrastive.load_from_checkpoint(f"{folder}/last.ckpt")
    assert loaded.objective == model.objective
    loss = float(trainer.callback_metrics["loss"])
    print(f"{loaded.objective}: loss {loss:.3f}; neighbour with the same pattern {before:.0%} before, ", end="")
    print(f"{neighbours(loaded, data):.0%} after")


if __name__ == "__main__":
    main(*sys.argv[1:])
