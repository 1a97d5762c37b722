"""The seam that most hosts share: logits and labels, handed to cross entropy."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from counterpoint.objective import Objective, as_objective


class CrossEntropyLoss(nn.Module):
    """A twin of ``nn.CrossEntropyLoss`` for contrastive logits.

    ``criterion(logits, labels)`` with logits ``(anchors, keys)``, the positive at column ``labels`` (or, as booleans
    ``(anchors, keys)``, several positives per row). With ``infonce`` it is cross entropy.

    Args:
        objective: an objective or a spec.
        scale: what the host has multiplied the similarities by, usually one over its temperature. The objective owns
            the temperature, and most need similarities as such.
        ignore_index: rows with this label do not count.
        contrastive: for a criterion that the host also uses for something else: ``contrastive(logits, labels)`` says
            which calls are contrastive; the others are plain cross entropy.
    """

    def __init__(
        self,
        objective: Objective | str,
        scale: float = 1.0,
        ignore_index: int = -100,
        contrastive: Callable[[Tensor, Tensor], bool] | None = None,
    ) -> None:
        super().__init__()
        self.objective = as_objective(objective)
        self.scale, self.ignore_index, self.contrastive = float(scale), ignore_index, contrastive

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.contrastive is not None and not self.contrastive(logits, labels):
            return nn.functional.cross_entropy(logits, labels, ignore_index=self.ignore_index)
        return self.objective.from_logits(logits, labels, scale=self.scale, ignore_index=self.ignore_index)

    def extra_repr(self) -> str:
        return f"{self.objective}, scale={self.scale:g}"
