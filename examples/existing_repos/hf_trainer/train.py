"""Any objective in a Hugging Face Trainer, as unsupervised SimCSE on a tiny BERT: python train.py "hcl:t=0.05"."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments, set_seed

import counterpoint as cp


class ContrastiveTrainer(Trainer):
    """Encodes each text twice; the two dropout masks are the two views."""

    def __init__(self, *args: Any, objective: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.objective = cp.objective(objective)

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any) -> Any:
        first, second = (model(**inputs).last_hidden_state[:, 0] for _ in range(2))
        loss = self.objective(first, second, pairing="one_way")
        return (loss, {"embedding": first}) if return_outputs else loss


class ReportCallback(TrainerCallback):
    """Report an objective in every tenth batch, to all that ``report_to`` names."""

    def __init__(self, trainer: Trainer, loss: torch.nn.Module) -> None:
        self.trainer, self.loss = trainer, loss

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.reports = cp.log_reports(self.loss, self.trainer.log, every=10)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.reports.close()


class Texts(Dataset):
    """Random token ids; a real dataset returns the output of its tokenizer."""

    def __init__(self, count: int = 512) -> None:
        self.tokens = torch.randint(3, 200, (count, 12))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[i], "attention_mask": torch.ones(12, dtype=torch.long)}


def main(spec: str = "adnce:t=0.05,mu=0.4") -> None:
    set_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=200, **sizes), add_pooling_layer=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=40,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = ContrastiveTrainer(model=model, args=arguments, train_dataset=Texts(), objective=spec)
        trainer.add_callback(ReportCallback(trainer, trainer.objective))
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    reports = [line["report/effective_negatives"] for line in trainer.state.log_history if "report/loss" in line]
    print(f"effective negatives {reports[0]:.1f} -> {reports[-1]:.1f}")
    print(f"{trainer.objective}: loss {float(losses[0]):.3f} -> {float(losses[-1]):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
