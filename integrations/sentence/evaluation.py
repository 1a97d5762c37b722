"""The evaluations of a run: the score that selects its checkpoint, and the scores of the finished model."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
from collections.abc import Sequence
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from . import retrieval, sts, transfer
from .encode import embed
from .settings import STS, TRANSFER

COLLAPSED = -100.0  # the dev score where Spearman's correlation is undefined, below every other score


class DevScore(SentenceEvaluator):  # type: ignore[misc]
    """The score on an STS set, or on the split ``dev`` of a retrieval collection; ``name`` becomes that of the metric.

    With ``drop_head``, the model is scored without its last module, the head that SimCSE trains with but does not keep.
    """

    def __init__(self, name: str, drop_head: bool) -> None:
        super().__init__()
        self.data = sts.load(name) if name in STS else retrieval.read(retrieval.find(name), "dev")
        self.name = self.primary_metric = name if name in STS else f"{Path(name).name} dev {retrieval.HEADLINE}"
        self.drop_head = drop_head

    def score(self, model: SentenceTransformer) -> float:
        """Return Spearman's correlation, or nDCG@10, times 100; NaN if undefined."""
        model = SentenceTransformer(modules=list(model)[:-1], device=model.device) if self.drop_head else model
        if isinstance(self.data, retrieval.Collection):
            return retrieval.score(model, self.data).metrics[retrieval.HEADLINE]
        return sts.score(self.data, embed(model, self.data.texts)).spearman

    def __call__(
        self, model: SentenceTransformer, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        score = self.score(model)
        metrics = {self.name: COLLAPSED if math.isnan(score) else score}
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    @property
    def description(self) -> str:
        return "Retrieval" if isinstance(self.data, retrieval.Collection) else "Semantic Similarity"


def evaluate(model: SentenceTransformer, names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the model's scores, and the share of the largest class of each transfer task.

    ``names`` are of STS sets, transfer tasks and collections; with all of SimCSE's seven sets, their average is added.
    """
    scores: dict[str, float] = {}
    shares: dict[str, float] = {}
    if sets := [name for name in names if name in STS]:
        similarity = sts.evaluate(model, sets)
        scores |= {name: one.spearman for name, one in similarity.sets.items()}
        scores |= {} if similarity.average is None else {"average": similarity.average}
    if tasks := [name for name in names if name in TRANSFER]:
        classified = transfer.evaluate(model, tasks).tasks
        scores |= {name: one.accuracy for name, one in classified.items()}
        scores |= {f"{name} F1": one.f1 for name, one in classified.items() if one.f1 is not None}
        shares = {name: one.majority for name, one in classified.items()}
    if collections := [name for name in names if name not in (*STS, *TRANSFER)]:
        for name, one in retrieval.evaluate(model, collections).collections.items():
            scores |= {f"{name} {metric}": value for metric, value in one.metrics.items()}
    return scores, shares
